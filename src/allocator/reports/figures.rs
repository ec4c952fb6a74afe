//! The macro that makes of one table of figures the structs, the table itself, and what reads them.

/// Declares [`Stats`](super::Stats) with its part `Fragmentation`, [`Figures`](super::Figures), and the table of their figures,
/// one row for each:
///
/// ```text
/// /// What it says.
/// name: Unit, Kind, [PyTorch's keys];
/// /// What it says, of a figure that follows from others.
/// name: Unit, Kind, [PyTorch's keys] = |stats| an expression;
/// /// What it says, of a figure of how fragmented the memory is.
/// name: Unit, Kind, [PyTorch's keys] in fragmentation;
/// ```
///
/// New ones come last: C programs have the struct in this order.
macro_rules! figures {
    ($(#[$meta:meta])* pub struct Stats { $($details:tt)* } $(#[$part_meta:meta])* pub struct Fragmentation; $($rows:tt)*) => {
        figures! { @sort { $(#[$meta])* { $($details)* } $(#[$part_meta])* } {} {} {} $($rows)* }
    };
    // Rows are taken one by one: each is a figure, and one that does not follow from others is a field, too.
    (@sort $structs:tt { $($fields:tt)* } $parts:tt { $($figures:tt)* }
        $(#[doc = $doc:literal])+ $name:ident: $unit:ident, $kind:ident, $keys:tt;
        $($rest:tt)*
    ) => {
        figures! { @sort $structs
            { $($fields)* $(#[doc = $doc])+ $name; }
            $parts
            { $($figures)* $(#[doc = $doc])+ $name, $unit, $kind, $keys, |stats| stats.$name, Some(|stats| &mut stats.$name); }
            $($rest)*
        }
    };
    (@sort $structs:tt $fields:tt { $($parts:tt)* } { $($figures:tt)* }
        $(#[doc = $doc:literal])+ $name:ident: $unit:ident, $kind:ident, $keys:tt in fragmentation;
        $($rest:tt)*
    ) => {
        figures! { @sort $structs $fields
            { $($parts)* $(#[doc = $doc])+ $name; }
            { $($figures)* $(#[doc = $doc])+ $name, $unit, $kind, $keys,
                |stats| stats.fragmentation.$name, Some(|stats| &mut stats.fragmentation.$name); }
            $($rest)*
        }
    };
    (@sort $structs:tt $fields:tt $parts:tt { $($figures:tt)* }
        $(#[doc = $doc:literal])+ $name:ident: $unit:ident, $kind:ident, $keys:tt = |$of:ident| $value:expr;
        $($rest:tt)*
    ) => {
        figures! { @sort $structs $fields $parts
            { $($figures)* $(#[doc = $doc])+ $name, $unit, $kind, $keys, |$of| $value, None; }
            $($rest)*
        }
    };
    (@sort { $(#[$meta:meta])* { $($details:tt)* } $(#[$part_meta:meta])* }
        { $($(#[doc = $field_doc:literal])+ $field:ident;)* }
        { $($(#[doc = $part_doc:literal])+ $part:ident;)* }
        { $($(#[doc = $doc:literal])+ $name:ident, $unit:ident, $kind:ident, $keys:tt, $value:expr, $place:expr;)* }
    ) => {
        $(#[$meta])*
        pub struct Stats {
            $($(#[doc = $field_doc])+ pub $field: u64,)*
            $($details)*
        }

        $(#[$part_meta])*
        pub struct Fragmentation {
            $($(#[doc = $part_doc])+ pub $part: u64,)*
        }

        impl Stats {
            /// Every figure, in the order of the fields of [`Figures`].
            pub const FIGURES: &[Figure] = &[$(Figure {
                name: stringify!($name),
                unit: FigureUnit::$unit,
                kind: FigureKind::$kind,
                torch_keys: &$keys,
                doc: concat!($($doc),+).trim_ascii_start(),
                field: $place,
            }),*];

            /// All figures by themselves.
            pub fn figures(&self) -> Figures {
                Figures { $($name: { let value: fn(&Self) -> u64 = $value; value(self) },)* }
            }
        }

        /// The figures of [`Stats`] by themselves, laid out as in C. Bytes, unless a name says otherwise.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[repr(C)]
        #[non_exhaustive]
        pub struct Figures {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Figures {
            /// The values, in the order of [`Stats::FIGURES`].
            pub fn values(&self) -> [u64; Stats::FIGURES.len()] {
                [$(self.$name),*]
            }

            /// The figures that have these values.
            pub fn of_values([$($name),*]: [u64; Stats::FIGURES.len()]) -> Self {
                Self { $($name),* }
            }
        }
    };
}
pub(super) use figures;

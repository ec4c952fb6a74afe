//! What is known of each figure: its unit, what kind of number it is, what it is called elsewhere, what it says.

use super::Stats;

/// A figure of an allocator: a row of the table [`Stats::FIGURES`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Figure {
    /// Its name: that of the field of [`Figures`](super::Figures), and in C, JSON and Python.
    pub name: &'static str,
    /// What it counts.
    pub unit: FigureUnit,
    /// What kind of number it is.
    pub kind: FigureKind,
    /// The keys of PyTorch's `memory_stats()` that have its value.
    pub torch_keys: &'static [&'static str],
    /// What it says, in a sentence or more.
    pub doc: &'static str,
    /// The field that has it, for those that do not follow from others.
    pub(super) field: Option<fn(&mut Stats) -> &mut u64>,
}

impl Figure {
    /// Its field, which the figures of several allocators are added up in. `None` where it follows from others.
    pub fn field<'a>(&self, stats: &'a mut Stats) -> Option<&'a mut u64> {
        self.field.map(|field| field(stats))
    }
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FigureUnit {
    /// Bytes.
    Bytes,
    /// A number of what its name says.
    Number,
}

/// What kind of number a figure is. From it follows how those of an allocator and of its pools add up to those of a device, what is
/// left when a pool ends, and what resets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FigureKind {
    /// An amount of now. A device has the sum; that of a pool ends with the pool. Nothing resets it.
    Amount,
    /// An amount of now that only a device's own allocator has. Nothing resets it.
    OwnAmount,
    /// The largest of now. A device has the largest of all; that of a pool ends with the pool. Nothing resets it.
    Largest,
    /// A count since the start. A device has the sum, and keeps that of a pool that has ended. PyTorch's keys show what was added
    /// since the accumulated statistics were reset.
    Count,
    /// The highest amount since the peaks were reset. A device has the sum of the peaks, which does not fall when a pool ends.
    Peak,
    /// The highest amount that statistics have shown since the peaks were reset: what was higher in between is not known. Those of a
    /// device show the sum.
    ShownPeak,
}

/// Declares [`Stats`] with its part `Fragmentation`, [`Figures`](super::Figures), and the table of their figures, one row for each:
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

#[cfg(test)]
mod tests {
    use super::super::Figures;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_keys_are_unique_and_every_figure_says_what_it_is() {
        let names: HashSet<&str> = Stats::FIGURES.iter().map(|figure| figure.name).collect();
        assert_eq!(names.len(), Stats::FIGURES.len());
        let keys: Vec<&str> = Stats::FIGURES.iter().flat_map(|figure| figure.torch_keys.iter().copied()).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "{keys:?}");
        for figure in Stats::FIGURES {
            assert_eq!(figure.unit == FigureUnit::Bytes, figure.name.ends_with("_bytes"), "{figure:?}");
            let is_peak = matches!(figure.kind, FigureKind::Peak | FigureKind::ShownPeak);
            assert_eq!(is_peak, figure.name.starts_with("peak_"), "{figure:?}");
            assert!(figure.doc.ends_with('.') && !figure.doc.contains("  "), "{figure:?}");
        }
    }

    #[test]
    fn a_figure_is_its_field() {
        let mut stats = Stats::default();
        let counted = Stats::FIGURES.iter().filter(|figure| figure.field.is_some());
        for (number, figure) in counted.enumerate() {
            *figure.field(&mut stats).unwrap() = 1 << number;
        }
        let figures = stats.figures();
        let values = figures.values();
        assert_eq!(Figures::of_values(values), figures);
        for (figure, value) in Stats::FIGURES.iter().zip(values) {
            if let Some(field) = figure.field(&mut stats) {
                assert_eq!(*field, value, "{figure:?}");
            }
        }
    }
}

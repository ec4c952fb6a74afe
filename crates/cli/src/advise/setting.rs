//! `--setting`: a policy, in the notation of the environment variable that selects its settings.

use gapless_process::{Budget, Conf, ConfError};
use gapless_trace::advice::Setting;
use gapless_trace::caching::{CachingSettings, ParseSettingsError};
use gapless_trace::{Device, GaplessSettings};
use std::str::FromStr;

/// A policy, and notes on what its text has that changes nothing in a replay.
#[derive(Clone, Debug)]
pub(super) struct SettingArgument {
    policy: Policy,
    pub(super) notes: Vec<String>,
}

#[derive(Clone, Debug)]
enum Policy {
    Caching(CachingSettings),
    Gapless { settings: GaplessSettings, budget: Option<Budget> },
}

impl SettingArgument {
    /// Returns the setting for a device, which a budget may be a part of.
    pub(super) fn on(&self, device: &Device) -> Setting {
        match self.policy {
            Policy::Caching(settings) => Setting::Caching(settings),
            Policy::Gapless { settings, budget } => {
                let budget_bytes = budget.map(|budget| budget.of(device.capacity_bytes));
                Setting::Gapless(GaplessSettings { budget_bytes, ..settings })
            }
        }
    }
}

/// Why a text is no setting.
#[derive(Debug, thiserror::Error)]
pub(super) enum SettingError {
    #[error(transparent)]
    PyTorch(#[from] ParseSettingsError),
    #[error(transparent)]
    Gapless(#[from] ConfError),
}

impl FromStr for SettingArgument {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, conf) = text.split_once(',').unwrap_or((text, ""));
        if first.trim() == GAPLESS {
            return Ok(gapless(conf)?);
        }
        let neutral = CachingSettings::parts(text).filter(|part| CachingSettings::changes_nothing(part));
        let notes = neutral.map(|part| format!("'{part}' changes nothing here")).collect();
        Ok(Self { policy: Policy::Caching(text.parse()?), notes })
    }
}

/// Reads settings of gapless.
fn gapless(text: &str) -> Result<SettingArgument, ConfError> {
    let conf = Conf::parse(text)?;
    let key_of = |part: &str| part.split(':').next().unwrap_or_default().trim().to_owned();
    let mut notes: Vec<String> = CachingSettings::parts(text)
        .filter(|part| NEUTRAL.contains(&key_of(part).as_str()))
        .map(|part| format!("'{part}' changes nothing here"))
        .collect();
    if conf.private {
        notes.push("of 'ipc:private', only the chunks of 2MiB are replayed, and no rounding to whole pages".into());
    }
    notes.extend(conf.warnings);
    let settings = GaplessSettings { slack: conf.slack, chunk: conf.chunk, budget_bytes: None };
    Ok(SettingArgument { policy: Policy::Gapless { settings, budget: conf.budget }, notes })
}

const GAPLESS: &str = "gapless";
/// Keys of `GAPLESS_CONF` that make no difference to which memory is held and served.
const NEUTRAL: [&str; 6] = ["region", "peers", "sharing", "log", "record", "report_on_failure"];

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::ChunkPolicy;

    #[test]
    fn settings_of_gapless_are_those_of_its_variable() {
        let device = Device::of(1000 << 20);
        let argument: SettingArgument = "gapless, slack:1.5,chunk:2MiB,budget:0.5,log:on,peers:[0,1]".parse().unwrap();
        let Setting::Gapless(settings) = argument.on(&device) else { panic!("{argument:?}") };
        let expected = GaplessSettings {
            slack: Some(1.5),
            chunk: Some(ChunkPolicy::Fixed(2 << 20)),
            budget_bytes: Some(500 << 20),
        };
        assert_eq!(settings, expected);
        assert_eq!(argument.on(&device).to_string(), "gapless,budget:500MiB,slack:1.5,chunk:2MiB");
        assert_eq!(argument.notes, ["'log:on' changes nothing here", "'peers:[0,1]' changes nothing here"]);
        let own: SettingArgument = "gapless,expandable_segments:True".parse().unwrap();
        assert!(own.notes[0].contains("has no effect"), "{:?}", own.notes);
        for wrong in ["gapless,slack:0.5", "gapless,magic:1", "gapless,chunk", "gapless,peers:[0"] {
            assert!(wrong.parse::<SettingArgument>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_are_not_cut_at_their_commas() {
        let text = "roundup_power2_divisions:[256:1,512:2,>:4],backend:native";
        let argument: SettingArgument = text.parse().unwrap();
        assert_eq!(argument.on(&Device::of(1 << 30)).to_string(), "roundup_power2_divisions:[256:1,512:2,>:4]");
        assert_eq!(argument.notes, ["'backend:native' changes nothing here"]);
    }
}

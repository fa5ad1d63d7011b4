//! The Lua scripts in `lua/`, with the SHA-1 by which a server knows them. Values only.

use std::sync::OnceLock;

/// One script.
#[derive(Debug)]
pub(crate) struct Script {
    /// What it is called in `lua/`.
    pub(crate) name: &'static str,
    /// Its text, as the server gets it.
    pub(crate) source: &'static str,
    sha: OnceLock<String>,
}

impl Script {
    const fn new(name: &'static str, source: &'static str) -> Self {
        Script { name, source, sha: OnceLock::new() }
    }

    /// The SHA-1 of the text: 40 lower-case hex digits.
    pub(crate) fn sha(&'static self) -> &'static str {
        self.sha.get_or_init(|| sha1_smol::Sha1::from(self.source).hexdigest())
    }
}

pub(crate) static ACQUIRE: Script = Script::new("acquire", include_str!("../lua/acquire.lua"));
pub(crate) static RELEASE: Script = Script::new("release", include_str!("../lua/release.lua"));
pub(crate) static RENEW: Script = Script::new("renew", include_str!("../lua/renew.lua"));
pub(crate) static FORCE_RELEASE: Script = Script::new("force_release", include_str!("../lua/force_release.lua"));
pub(crate) static INSPECT: Script = Script::new("inspect", include_str!("../lua/inspect.lua"));

/// All of them.
pub(crate) static ALL: [&Script; 5] = [&ACQUIRE, &RELEASE, &RENEW, &FORCE_RELEASE, &INSPECT];

//! What a lock is called: the name that the caller gave, the Redis key, and the channel. Values only.
//!
//! The rules are Redisson's (docs/protocol.md): the key is the mapped name itself; the channel is
//! `redisson_lock__channel:` and the key, wrapped in braces unless a `{` stands in it already.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, InvalidName};

const CHANNEL_PREFIX: &str = "redisson_lock__channel";

/// A lock's name with everything that follows from it. Cheap to compare and to hash: by key.
#[derive(Debug)]
pub(crate) struct LockName {
    given: Box<str>,
    key: Box<str>,
    channel: Box<str>,
}

/// Turns the name that the caller gave into the Redis key: Redisson's `NameMapper`.
pub(crate) type NameMapper = Arc<dyn Fn(&str) -> String + Send + Sync>;

impl LockName {
    pub(crate) fn new(given: &str, mapper: Option<&NameMapper>) -> Self {
        let key = match mapper {
            Some(map) => map(given),
            None => given.to_owned(),
        };
        LockName { given: given.into(), channel: prefixed(CHANNEL_PREFIX, &key).into(), key: key.into() }
    }

    /// The name as the caller gave it.
    pub(crate) fn given(&self) -> &str {
        &self.given
    }

    /// The Redis key.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The channel on which a release is told.
    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// What no server could serve is refused before anything is sent. `one_slot`: the key and its channel must hash to the
    /// same cluster slot.
    pub(crate) fn check(&self, one_slot: bool) -> Result<(), Error> {
        let why = if self.given.is_empty() || self.key.is_empty() {
            InvalidName::Empty
        } else if one_slot && slot_part(self.key.as_bytes()) != slot_part(self.channel.as_bytes()) {
            InvalidName::ChannelInOtherSlot
        } else {
            return Ok(());
        };
        Err(Error::InvalidName { lock: self.given.clone(), why })
    }
}

impl PartialEq for LockName {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for LockName {}

impl std::hash::Hash for LockName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.given)
    }
}

/// Redisson's `prefixName`: only the presence of `{` is looked at, as Redisson does.
fn prefixed(prefix: &str, key: &str) -> String {
    if key.contains('{') { format!("{prefix}:{key}") } else { format!("{prefix}:{{{key}}}") }
}

/// The part of a key that a Redis cluster hashes: what stands between the first `{` and the next `}`, if that is not
/// empty; else all of it.
fn slot_part(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&b| b == b'{') else { return key };
    match key[open + 1..].iter().position(|&b| b == b'}') {
        None | Some(0) => key,
        Some(len) => &key[open + 1..open + 1 + len],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(n: &str) -> LockName {
        LockName::new(n, None)
    }

    #[test]
    fn the_channel_is_named_as_redisson_names_it() {
        assert_eq!(name("foo").channel(), "redisson_lock__channel:{foo}");
        assert_eq!(name("{foo}:rw").channel(), "redisson_lock__channel:{foo}:rw");
        assert_eq!(name("a{b").channel(), "redisson_lock__channel:a{b");
    }

    #[test]
    fn names_whose_channel_leaves_the_slot_are_told_apart() {
        for good in ["foo", "a{b}c", "{a}{b}"] {
            assert!(name(good).check(true).is_ok(), "{good}");
        }
        for bad in ["foo{bar", "a}b", "{}x", "x{}y"] {
            assert!(matches!(
                name(bad).check(true),
                Err(Error::InvalidName { why: InvalidName::ChannelInOtherSlot, .. })
            ));
            assert!(name(bad).check(false).is_ok(), "{bad}");
        }
        assert!(matches!(name("").check(false), Err(Error::InvalidName { why: InvalidName::Empty, .. })));
    }

    #[test]
    fn the_mapper_makes_the_key_and_the_channel_follows() {
        let mapper: NameMapper = Arc::new(|n| format!("app:{n}"));
        let n = LockName::new("x", Some(&mapper));
        assert_eq!((n.given(), n.key(), n.channel()), ("x", "app:x", "redisson_lock__channel:{app:x}"));
    }

    proptest! {
        #[test]
        fn a_name_without_braces_is_always_in_one_slot(n in "[^{}]{1,40}") {
            prop_assert!(name(&n).check(true).is_ok());
        }

        #[test]
        fn any_name_that_is_not_empty_works_on_one_server(n in ".{1,60}") {
            let n = name(&n);
            prop_assert!(n.check(false).is_ok());
            prop_assert!(n.channel().starts_with("redisson_lock__channel:"));
            prop_assert!(n.channel().contains(n.key()));
        }
    }
}

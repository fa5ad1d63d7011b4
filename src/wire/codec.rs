//! Operations to commands, reply frames to replies, error texts to kinds. No connection here: what comes from a server is
//! taken as it is, and what makes no sense is an error.

use std::sync::Arc;
use std::time::Duration;

use fred::error::{Error as FredError, ErrorKind};
use fred::types::{ClusterHash, CustomCommand, Resp3Frame as Frame, Value};
use fred::util::static_str;

use super::op::{Failure, Op, Refusal, RefusalKind, Renewal, Reply, ThreadId, TimeToLive, Trouble};
use crate::error::Source;
use crate::script::{self, Script};

/// What publishes a release.
const PUBLISH: &str = "PUBLISH";

/// A command, ready to be handed over.
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) args: Vec<Value>,
}

impl Command {
    pub(super) fn new(name: &'static str, args: Vec<Value>) -> Self {
        Command { name, args }
    }

    /// In fred's terms, with its arguments beside it.
    pub(super) fn into_parts(self) -> (CustomCommand, Vec<Value>) {
        (CustomCommand::new_static(self.name, ClusterHash::Random, false), self.args)
    }
}

fn text(s: &str) -> Value {
    Value::String(s.into())
}

fn fixed(s: &'static str) -> Value {
    Value::String(static_str(s))
}

fn number(n: u64) -> Value {
    Value::String(n.to_string().into())
}

/// The holder field of `thread`.
fn holder(client_id: &str, thread: ThreadId) -> Value {
    Value::String(format!("{client_id}:{}", thread.0).into())
}

/// The script that does `op`, if one does.
pub(super) fn script(op: &Op) -> Option<&'static Script> {
    match op {
        Op::Acquire { .. } => Some(&script::ACQUIRE),
        Op::Release { .. } => Some(&script::RELEASE),
        Op::Renew { .. } => Some(&script::RENEW),
        Op::ForceRelease { .. } => Some(&script::FORCE_RELEASE),
        Op::Inspect { .. } => Some(&script::INSPECT),
        Op::Exists { .. } | Op::TimeToLive { .. } | Op::HoldCount { .. } | Op::KillConnection { .. } => None,
    }
}

/// `op` as a command. `whole`: a script travels as its text, not its SHA-1.
pub(super) fn command(op: &Op, client_id: &str, whole: bool) -> Command {
    match script(op) {
        Some(script) => {
            let (name, body) = if whole { ("EVAL", script.source) } else { ("EVALSHA", script.sha()) };
            let mut args = Vec::with_capacity(8);
            args.push(fixed(body));
            keys_and_args(op, client_id, &mut args);
            Command::new(name, args)
        }
        None => match op {
            Op::Exists { name } => Command::new("EXISTS", vec![text(name.key())]),
            Op::TimeToLive { name } => Command::new("PTTL", vec![text(name.key())]),
            Op::HoldCount { name, thread } => Command::new("HGET", vec![text(name.key()), holder(client_id, *thread)]),
            Op::KillConnection { id } => {
                Command::new("CLIENT", vec![fixed("KILL"), fixed("ID"), Value::String(id.to_string().into())])
            }
            _ => unreachable!("has a script"),
        },
    }
}

/// The key count, the keys and the arguments of a script's call.
fn keys_and_args(op: &Op, client_id: &str, out: &mut Vec<Value>) {
    match op {
        Op::Acquire { name, thread, count, lease } => out.extend([
            fixed("1"),
            text(name.key()),
            number(lease.as_millis()),
            holder(client_id, *thread),
            number(u64::from(*count)),
        ]),
        Op::Release { name, thread, remaining } => out.extend([
            fixed("1"),
            text(name.key()),
            text(name.channel()),
            fixed(PUBLISH),
            holder(client_id, *thread),
            number(u64::from(*remaining)),
        ]),
        Op::Renew { holds, lease } => {
            out.reserve(2 * holds.len() + 2);
            out.push(number(holds.len() as u64));
            out.extend(holds.iter().map(|(name, _)| text(name.key())));
            out.push(number(lease.as_millis()));
            out.extend(holds.iter().map(|(_, thread)| holder(client_id, *thread)));
        }
        Op::ForceRelease { name } => {
            out.extend([fixed("1"), text(name.key()), text(name.channel()), fixed(PUBLISH)]);
        }
        Op::Inspect { name } => out.extend([fixed("1"), text(name.key())]),
        _ => unreachable!("has no script"),
    }
}

/// What a server's frame means as the answer to `op`.
pub(super) fn reply(op: &Op, frame: Frame) -> Result<Reply, Failure> {
    if let Some(refusal) = error_of(&frame) {
        return Err(Failure::Refused(refusal));
    }
    understand(op, &frame).ok_or_else(|| Failure::Unknown(Trouble::Connection(strange(&frame))))
}

fn understand(op: &Op, frame: &Frame) -> Option<Reply> {
    Some(match op {
        Op::Acquire { .. } => match frame {
            Frame::Null => Reply::Acquired,
            Frame::Number { data, .. } => Reply::Held { ttl: u64::try_from(*data).ok().map(Duration::from_millis) },
            _ if is_status(frame, b"GONE") => Reply::Gone,
            _ => return None,
        },
        Op::Release { .. } => match frame {
            Frame::Null => Reply::NotHolder { by: None },
            Frame::BlobString { data, .. } => Reply::NotHolder { by: Some(String::from_utf8_lossy(data).into()) },
            Frame::Number { data, .. } => Reply::Released { receivers: u64::try_from(*data).ok() },
            _ if is_status(frame, b"KEPT") => Reply::Kept,
            _ => return None,
        },
        Op::Renew { holds, .. } => {
            let Frame::Array { data, .. } = frame else { return None };
            if data.len() != holds.len() {
                return None;
            }
            Reply::Renewed(data.iter().map(renewal).collect::<Option<_>>()?)
        }
        Op::ForceRelease { .. } => match frame {
            Frame::Null => Reply::Absent,
            Frame::Number { data, .. } => Reply::Released { receivers: u64::try_from(*data).ok() },
            _ => return None,
        },
        Op::Exists { .. } => match frame {
            Frame::Number { data, .. } => Reply::Exists(*data > 0),
            _ => return None,
        },
        Op::TimeToLive { .. } => Reply::TimeToLive(time_to_live(frame)?),
        Op::HoldCount { .. } => match frame {
            Frame::Null => Reply::HoldCount(0),
            Frame::BlobString { data, .. } => Reply::HoldCount(std::str::from_utf8(data).ok()?.parse().ok()?),
            _ => return None,
        },
        Op::Inspect { .. } => {
            let Frame::Array { data, .. } = frame else { return None };
            let [ttl, Frame::Array { data: fields, .. }] = data.as_slice() else { return None };
            let (pairs, []) = fields.as_chunks::<2>() else { return None };
            let holders = pairs.iter().map(|[field, count]| {
                let count = bytes(count)?;
                // Other members of the family keep words beside counts (`mode`); those count nothing.
                let count = std::str::from_utf8(count).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
                Some((String::from_utf8_lossy(bytes(field)?).into(), count))
            });
            let holders = holders.collect::<Option<_>>()?;
            Reply::Inspected { holders, ttl: time_to_live(ttl)?, subscribers: None }
        }
        Op::KillConnection { .. } => match frame {
            Frame::Number { .. } => Reply::Killed,
            _ => return None,
        },
    })
}

fn renewal(frame: &Frame) -> Option<Renewal> {
    Some(match frame {
        Frame::Number { data: 0, .. } => Renewal::NotHeld,
        Frame::Number { data: 1, .. } => Renewal::Renewed,
        Frame::BlobString { data, .. } => Renewal::Failed(refusal(&String::from_utf8_lossy(data))),
        _ => Renewal::Failed(error_of(frame)?),
    })
}

fn time_to_live(frame: &Frame) -> Option<TimeToLive> {
    match frame {
        Frame::Number { data: -2, .. } => Some(TimeToLive::Absent),
        Frame::Number { data: -1, .. } => Some(TimeToLive::Endless),
        Frame::Number { data, .. } => Some(TimeToLive::Left(Duration::from_millis(u64::try_from(*data).ok()?))),
        _ => None,
    }
}

/// How many listen to a channel, from PUBSUB NUMSUB of that one.
pub(super) fn subscribers(frame: &Frame) -> Option<u64> {
    let Frame::Array { data, .. } = frame else { return None };
    match data.as_slice() {
        [_, Frame::Number { data, .. }] => u64::try_from(*data).ok(),
        _ => None,
    }
}

/// What a string frame carries.
pub(super) fn bytes(frame: &Frame) -> Option<&[u8]> {
    match frame {
        Frame::BlobString { data, .. } | Frame::SimpleString { data, .. } => Some(data),
        _ => None,
    }
}

fn is_status(frame: &Frame, word: &[u8]) -> bool {
    matches!(frame, Frame::SimpleString { data, .. } if data == word)
}

/// The error in an error frame.
pub(super) fn error_of(frame: &Frame) -> Option<Refusal> {
    match frame {
        Frame::SimpleError { data, .. } => Some(refusal(data)),
        Frame::BlobError { data, .. } => Some(refusal(&String::from_utf8_lossy(data))),
        _ => None,
    }
}

/// Whether the server does not know the script: nothing was executed.
pub(super) fn is_unknown_script(frame: &Frame) -> bool {
    matches!(frame, Frame::SimpleError { data, .. } if data.starts_with("NOSCRIPT"))
}

/// An error text, told apart. Redis 6 puts errors inside scripts into a sentence; Redis 7 lets their first word stand.
pub(super) fn refusal(message: &str) -> Refusal {
    use RefusalKind::*;
    const WORDS: [(&str, RefusalKind); 16] = [
        ("WRONGTYPE", WrongType),
        ("NOPERM", Permission),
        ("The user executing the script can't", Permission),
        ("NOAUTH", Authentication),
        ("WRONGPASS", Authentication),
        ("OOM ", OutOfMemory),
        ("MISCONF", Misconf),
        ("READONLY", ReadOnly),
        ("NOREPLICAS", NoReplicas),
        ("LOADING", Loading),
        ("BUSY ", Busy),
        ("CLUSTERDOWN", Unavailable),
        ("MASTERDOWN", Unavailable),
        ("TRYAGAIN", Unavailable),
        ("MOVED ", Unavailable),
        ("ASK ", Unavailable),
    ];
    let plain = message.strip_prefix("ERR ").unwrap_or(message);
    let nested = plain.starts_with("Error running script");
    let kind = WORDS
        .iter()
        .find(|(word, _)| plain.starts_with(word) || (nested && plain.contains(word)))
        .map_or(Other, |(_, kind)| *kind);
    Refusal { kind, message: message.into() }
}

/// What fred's own error says of an operation that was handed over.
pub(super) fn failure(error: FredError) -> Failure {
    match error.kind() {
        ErrorKind::Timeout => Failure::Unknown(Trouble::Timeout),
        _ if was_not_written(&error) => Failure::NotSent(Trouble::Connection(Arc::new(error))),
        _ => Failure::Unknown(Trouble::Connection(Arc::new(error))),
    }
}

/// Errors that fred gives before it writes, and at no other time.
fn was_not_written(error: &FredError) -> bool {
    match error.kind() {
        ErrorKind::Backpressure => true,
        ErrorKind::Unknown => {
            matches!(error.details(), "Failed to send command to router." | "Failed to route command.")
        }
        _ => false,
    }
}

#[derive(Debug, thiserror::Error)]
#[error("an unexpected reply: {0}")]
struct StrangeReply(String);

fn strange(frame: &Frame) -> Source {
    let mut shown = format!("{frame:?}");
    if let Some((end, _)) = shown.char_indices().nth(200) {
        shown.truncate(end);
    }
    Arc::new(StrangeReply(shown))
}

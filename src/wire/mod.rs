//! The wire: typed operations and how they travel. The only room that knows fred.
//!
//! | file | what |
//! |---|---|
//! | `op` | operations, replies, failures: values |
//! | `codec` | operations to commands, reply frames to replies, error texts to kinds |
//! | `connect` | settings to a connected client; what is known of a connection |
//! | `lane` | one ordered queue over one connection: the handle |
//! | `queue` | what a lane's handles and its task share |
//! | `driver` | a lane's task: drains the queue, keeps the connection |
//! | `call` | what the driver waits for: a future for each command and event |
//! | `subscriber` | the connection that listens: the handle, and the way of the messages |
//! | `listen` | the subscriber's task: makes what is subscribed what is wanted |
//!
//! What is relied upon of fred 10.1.0, and pinned by `tests`:
//!
//! * With `max_command_attempts` 1 a command is written at most once, whatever happens to the connection.
//! * A command whose own timeout has passed before it was written is never written. (One whose future was dropped would
//!   be: so no future of an operation is ever dropped while its client lives.)
//! * A command enters fred's queue in the first poll of its future, and is written in that order.
//! * The reconnect event is out before anything is written on the new connection.
//! * `custom_raw` hands over the server's own frame, errors included. So an `Err` is always fred's, never the server's.
//! * The acknowledgement of SUBSCRIBE is not waited for, and its error goes to the next command: so a PING that says which
//!   one it is follows it.

mod call;
mod codec;
mod connect;
mod driver;
mod lane;
mod listen;
mod op;
mod queue;
mod subscriber;
#[cfg(test)]
mod tests;

pub(crate) use self::connect::Endpoint;
pub(crate) use self::lane::{Lane, LaneSettings, OpToken};
pub(crate) use self::op::*;
pub(crate) use self::subscriber::{Heard, Subscriber};

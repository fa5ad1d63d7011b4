//! What a lane's driver waits for: one future for each thing, and what it ends with.
//!
//! A command enters fred's queue in the first poll of its future, so the order of the first polls is the order on the
//! wire. This room knows commands and the client. It may not know the queue, nor what an outcome leads to: that is
//! `lane`'s and `driver`'s.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::Error as FredError;
use fred::interfaces::ClientLike;
use fred::types::{Resp3Frame as Frame, Value};
use futures::future::BoxFuture;

use super::codec::{self, Command};
use super::connect::{Link, Router};
use super::lane::OpToken;
use super::op::{Failure, Op, Reply};
use crate::script;

/// A future of the driver.
pub(super) type Call = BoxFuture<'static, Done>;

/// What a future of the driver ends with.
pub(super) enum Done {
    Op(OpToken, Result<Reply, Failure>),
    ConnectionId {
        epoch: u64,
        id: Option<i64>,
    },
    /// The answer to a PING.
    Alive(Result<(), FredError>),
    /// A new connection was asked for.
    Renewed(Result<(), FredError>),
    /// Something happened to the connection.
    Event,
    /// Time has passed.
    Tick {
        idle: bool,
    },
    RouterEnded(Option<FredError>),
    Restart,
    Quit,
    Nothing,
}

/// One operation: one command, and a second one only if the server did not know the script.
pub(super) fn operation(client: &Client, client_id: &Arc<str>, token: OpToken, op: Op) -> Call {
    let first = send(client, codec::command(&op, client_id, false));
    if let Op::Inspect { name } = &op {
        let beside = Command::new("PUBSUB", vec![Value::from("NUMSUB"), Value::from(name.channel())]);
        let beside = send(client, beside);
        let client = client.clone();
        let client_id = client_id.clone();
        return Box::pin(async move {
            let (frame, heard_by) = futures::join!(first, beside);
            let mut result = finish(&client, &client_id, &op, frame).await;
            if let Ok(Reply::Inspected { subscribers, .. }) = &mut result {
                *subscribers = heard_by.ok().as_ref().and_then(codec::subscribers);
            }
            Done::Op(token, result)
        });
    }
    let client = client.clone();
    let client_id = client_id.clone();
    Box::pin(async move {
        let frame = first.await;
        Done::Op(token, finish(&client, &client_id, &op, frame).await)
    })
}

async fn finish(client: &Client, client_id: &str, op: &Op, frame: Result<Frame, FredError>) -> Result<Reply, Failure> {
    let frame = match frame {
        Ok(frame) if codec::is_unknown_script(&frame) => send(client, codec::command(op, client_id, true)).await,
        other => other,
    };
    match frame {
        Ok(frame) => codec::reply(op, frame),
        Err(error) => Err(codec::failure(error)),
    }
}

/// What every new connection begins with: its name, the question for its id, and the scripts, so that the first operations
/// need not send whole ones. Nothing depends on any of it: a server may forbid it all.
pub(super) fn greeting(client: &Client, name: Option<&str>, epoch: u64) -> Vec<Call> {
    let name = name.map(|name| {
        let command = Command::new("CLIENT", vec![Value::from("SETNAME"), Value::from(name)]);
        attempt(client, "CLIENT SETNAME", command)
    });
    let scripts = script::ALL.iter().map(|script| {
        let args = vec![Value::from_static_str("LOAD"), Value::from_static_str(script.source)];
        attempt(client, script.name, Command::new("SCRIPT", args))
    });
    name.into_iter().chain([connection_id(client, epoch)]).chain(scripts).collect()
}

/// A command whose failure is logged and nothing else.
fn attempt(client: &Client, what: &'static str, command: Command) -> Call {
    let sent = send(client, command);
    Box::pin(async move {
        trace_failed(what, sent.await);
        Done::Nothing
    })
}

fn connection_id(client: &Client, epoch: u64) -> Call {
    let sent = send(client, Command::new("CLIENT", vec![Value::from("ID")]));
    Box::pin(async move {
        let id = match sent.await {
            Ok(Frame::Number { data, .. }) => Some(data),
            other => {
                trace_failed("CLIENT ID", other);
                None
            }
        };
        Done::ConnectionId { epoch, id }
    })
}

fn trace_failed(what: &str, result: Result<Frame, FredError>) {
    match result {
        Ok(frame) => {
            if let Some(refusal) = codec::error_of(&frame) {
                tracing::debug!(what, reason = %refusal.message, "refused");
            }
        }
        Err(error) => tracing::debug!(what, %error, "failed"),
    }
}

/// Asks whether the connection lives.
pub(super) fn ping(client: &Client) -> Call {
    let sent = send(client, Command::new("PING", Vec::new()));
    // An error reply is an answer too.
    Box::pin(async move { Done::Alive(sent.await.map(drop)) })
}

/// Gives the connection up for a new one.
pub(super) fn renew(client: &Client) -> Call {
    let client = client.clone();
    Box::pin(async move { Done::Renewed(client.force_reconnection().await) })
}

/// Hangs up, within `limit`.
pub(super) fn quit(client: &Client, limit: Duration) -> Call {
    let client = client.clone();
    Box::pin(async move {
        let _ = tokio::time::timeout(limit, client.quit()).await;
        Done::Quit
    })
}

/// The next thing that happens to the connection from now on.
pub(super) fn event(client: &Client) -> Call {
    let event = Link::watch(client);
    Box::pin(async move {
        event.await;
        Done::Event
    })
}

/// The end of the connection's task.
pub(super) fn router_ended(mut router: Router) -> Call {
    Box::pin(async move { Done::RouterEnded(router.ended().await) })
}

/// `done`, after a while.
pub(super) fn later(after: Duration, done: Done) -> Call {
    Box::pin(async move {
        tokio::time::sleep(after).await;
        done
    })
}

/// One command. It enters fred's queue in the first poll. `Err` is fred's, never the server's.
fn send(client: &Client, command: Command) -> impl Future<Output = Result<Frame, FredError>> + Send + 'static {
    let client = client.clone();
    async move {
        let (command, args) = command.into_parts();
        client.custom_raw(command, args).await
    }
}

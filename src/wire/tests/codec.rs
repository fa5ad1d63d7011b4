//! Replies that make no sense, and texts of errors. Without a server.

use fred::types::Resp3Frame as Frame;

use super::*;
use crate::wire::codec;

#[test]
fn hostile_replies_are_errors() {
    let blob = |s: &'static str| Frame::BlobString { data: s.into(), attributes: None };
    let status = |s: &'static str| Frame::SimpleString { data: s.into(), attributes: None };
    let number = |data| Frame::Number { data, attributes: None };
    let array = |data| Frame::Array { data, attributes: None };
    let frames = || {
        vec![
            Frame::Null,
            number(-3),
            number(i64::MIN),
            number(i64::MAX),
            blob(""),
            blob("x"),
            blob("99999999999999999999"),
            Frame::BlobString { data: (&[0xff, 0xfe][..]).into(), attributes: None },
            status("OK"),
            status("gone"),
            array(vec![]),
            array(vec![number(7)]),
            array(vec![number(1), number(1), number(1)]),
            array(vec![number(-1), array(vec![blob("odd")])]),
            array(vec![blob("x"), array(vec![])]),
            array(vec![number(-5), array(vec![])]),
            array(vec![number(1), array(vec![number(1), array(vec![])])]),
            Frame::Boolean { data: true, attributes: None },
            Frame::Double { data: f64::NAN, attributes: None },
            Frame::Push { data: vec![], attributes: None },
            Frame::ChunkedString("x".into()),
        ]
    };
    let ops = [
        acquire("k", 1, 1, 1),
        release("k", 1, 0),
        renew(&[("k", 1), ("l", 2)], 1),
        Op::ForceRelease { name: name("k") },
        Op::Exists { name: name("k") },
        Op::TimeToLive { name: name("k") },
        Op::HoldCount { name: name("k"), thread: ThreadId(1) },
        Op::Inspect { name: name("k") },
        Op::KillConnection { id: 1 },
    ];
    for op in &ops {
        for frame in frames() {
            match codec::reply(op, frame) {
                Ok(_) | Err(Failure::Unknown(Trouble::Connection(_))) => {}
                other => panic!("{op:?}: {other:?}"),
            }
        }
    }
    let unknown = |op: &Op, frame| assert!(matches!(codec::reply(op, frame), Err(Failure::Unknown(_))), "{op:?}");
    unknown(&ops[0], status("gone"));
    unknown(&ops[0], blob("GONE"));
    unknown(&ops[1], status("OK"));
    unknown(&ops[2], array(vec![number(1)]));
    unknown(&ops[2], array(vec![number(1), number(2)]));
    unknown(&ops[6], blob("x"));
    unknown(&ops[7], array(vec![number(-1), array(vec![blob("odd")])]));
    // A field called KEPT is a holder, not a status.
    assert_eq!(codec::reply(&ops[1], blob("KEPT")).unwrap(), Reply::NotHolder { by: Some("KEPT".into()) });
}

#[test]
fn error_texts_are_told_apart() {
    use RefusalKind::*;
    let table = [
        ("WRONGTYPE Operation against a key holding the wrong kind of value script: ab, on @user_script:1.", WrongType),
        (
            "ERR Error running script (call to f_ab): @user_script:3: WRONGTYPE Operation against a key holding the wrong kind of value",
            WrongType,
        ),
        ("NOPERM this user has no permissions to run the 'evalsha' command", Permission),
        (
            "ERR The user executing the script can't run this command or subcommand script: ab, on @user_script:9.",
            Permission,
        ),
        (
            "ERR Error running script (call to f_ab): @user_script:3: The user executing the script can't run this command or subcommand",
            Permission,
        ),
        ("NOAUTH Authentication required.", Authentication),
        ("OOM command not allowed when used memory > 'maxmemory'. script: ab", OutOfMemory),
        (
            "ERR Error running script (call to f_ab): @user_script:3: -OOM command not allowed when used memory > 'maxmemory'.",
            OutOfMemory,
        ),
        ("MISCONF Redis is configured to save RDB snapshots", Misconf),
        ("READONLY You can't write against a read only replica.", ReadOnly),
        ("NOREPLICAS Not enough good replicas to write.", NoReplicas),
        ("LOADING Redis is loading the dataset in memory", Loading),
        ("BUSY Redis is busy running a script.", Busy),
        ("CLUSTERDOWN The cluster is down", Unavailable),
        ("MASTERDOWN Link with MASTER is down", Unavailable),
        ("ERR unknown command `EVALSHA`, with args beginning with: `READONLY` ", Other),
        ("ERR value is not an integer or out of range", Other),
        ("", Other),
    ];
    for (text, kind) in table {
        assert_eq!(codec::refusal(text).kind, kind, "{text}");
    }
}

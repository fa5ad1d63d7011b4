//! Property tests of the pure state: whatever calls, drops, answers and losses come in whatever order, the state keeps its
//! promises.

mod world;

use std::task::{Context, Poll};

use proptest::prelude::*;

use self::world::{Step, World, step};
use super::Tag;
use super::call::Found;
use super::state::Phase;
use crate::error::HoldEnd;
use crate::wire::Op;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_servers_count_is_the_number_of_live_guards_and_nothing_is_left_behind(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            world.check();
        }

        // At rest, the server counts what lives here: guards, and grants that nobody has picked up.
        world.settle();
        for _ in 0..3 {
            world.tick();
            world.settle();
        }
        for (thread, hold) in &world.state.holds {
            if matches!(hold.phase, Phase::Held) && !world.removed.contains(thread) {
                let key = world.key;
                prop_assert_eq!(key, Some((*thread, hold.guards)), "server's count of {:?}", thread);
                let here = world.guards.iter().filter(|g| g.thread == *thread).count();
                prop_assert!(here <= hold.guards as usize);
            }
        }

        // When everybody has gone, so has everything, but for acquires of doubtful fate, whose time has not come.
        while !world.calls.is_empty() {
            world.take(Step::DropCall(0));
        }
        while let Some(guard) = world.guards.first().cloned() {
            world.take(Step::DropGuard(0));
            prop_assert!(guard.hold.end().is_some() || world.guards.iter().any(|g| g.thread == guard.thread)
                || world.state.holds.get(&guard.thread).is_some_and(|h| h.live() > 0));
        }
        for _ in 0..3 {
            world.settle();
            world.tick();
        }
        world.settle();
        let doubtful = world.doubtful();
        let left: Vec<_> = world.state.holds.keys().filter(|t| !doubtful.contains(t)).collect();
        prop_assert!(left.is_empty(), "holds left behind: {:?}", left);
        if let Some((thread, _)) = world.key {
            prop_assert!(doubtful.contains(&thread), "a key left behind");
        }
        let queued = world.state.keys.values().map(|k| k.queue.len()).sum::<usize>();
        prop_assert_eq!(queued, 0);
        prop_assert!(world.state.keys.values().all(|k| k.active.is_none() && k.asking.is_none()));
    }

    #[test]
    fn a_waiter_gets_the_lock_when_the_others_have_let_go(owners in prop::collection::vec(0..3usize, 2..20)) {
        let mut world = World::new();
        let total = owners.len();
        for owner in owners {
            world.take(Step::Call { owner, once: false, watched: true });
        }
        // Each is served, in turn, by nothing but answers.
        let mut served = 0;
        for _ in 0..total * 6 {
            world.settle();
            for _ in 0..world.calls.len() {
                let before = world.guards.len();
                world.take(Step::Poll(0));
                if world.guards.len() == before && !world.calls.is_empty() {
                    world.calls.rotate_left(1);
                }
            }
            served += world.guards.len();
            while !world.guards.is_empty() {
                let ends = world.guards[0].hold.clone();
                world.take(Step::DropGuard(0));
                world.check();
                prop_assert!(ends.end() != Some(HoldEnd::Lost(crate::error::LostReason::Expired)));
            }
        }
        prop_assert_eq!(served, total);
        prop_assert_eq!(world.key, None);
    }
}

/// The tags carry what the state needs to find its way back.
#[test]
fn a_withdrawn_attempt_is_handed_to_the_next_waiter() {
    let mut world = World::new();
    world.take(Step::Call { owner: 0, once: false, watched: true });
    world.take(Step::Call { owner: 1, once: false, watched: true });
    assert_eq!(world.io.pushed.lock().len(), 1, "one contender for two waiters");
    world.take(Step::DropCall(0));
    assert!(matches!(world.io.pushed.lock().front(), Some((Op::Acquire { .. }, Tag::Ask(_)))));
    assert_eq!(world.io.pushed.lock().len(), 1, "no release behind it: it serves the next");
    world.settle();
    world.take(Step::Poll(0));
    assert_eq!(world.guards.len(), 1);
}

#[test]
fn a_grant_that_came_too_late_does_not_leave_the_next_waiter_asleep() {
    let mut world = World::new();
    world.take(Step::BriefCall { owner: 0 });
    world.take(Step::Call { owner: 1, once: false, watched: true });
    world.settle();
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let Poll::Ready(Found::Outcome(Err(error))) = world.calls.remove(0).poll(&mut cx) else { panic!("not told") };
    assert!(matches!(error, crate::error::Error::ExpiredBeforeUse { .. }));
    world.take(Step::Poll(0));
    assert_eq!(world.guards.len(), 1, "the next waiter sleeps");
}

//! Property tests of the pure state: whatever calls, drops, answers and losses come in whatever order, the state keeps its
//! promises. What the scripts do to one key is modelled by [`World::execute`]; real servers are for `tests/`.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use proptest::prelude::*;

use super::call::{Call, Found, Grant, Patience, Request};
use super::state::{Phase, State};
use super::{Io, Tag};
use crate::clock::Moment;
use crate::config::Config;
use crate::error::HoldEnd;
use crate::lease::Lease;
use crate::names::LockName;
use crate::owner::Owner;
use crate::wire::{Answer, Failure, Op, Renewal, Reply, ThreadId, Trouble};

#[derive(Clone, Copy, Debug)]
enum Step {
    Call {
        owner: usize,
        once: bool,
        watched: bool,
    },
    /// A call whose lease is over before it is certain.
    BriefCall {
        owner: usize,
    },
    /// The oldest operation in flight is executed and answered.
    Deliver,
    /// It gets no answer; executed or not.
    LoseAnswer {
        executed: bool,
    },
    Poll(usize),
    DropCall(usize),
    DropGuard(usize),
    /// Somebody removes the key.
    Remove,
    Message,
    /// Time passes for whatever waits to be tried again.
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3usize, any::<bool>(), any::<bool>())
            .prop_map(|(owner, once, watched)| Step::Call { owner, once, watched }),
        1 => (0..3usize).prop_map(|owner| Step::BriefCall { owner }),
        8 => Just(Step::Deliver),
        1 => any::<bool>().prop_map(|executed| Step::LoseAnswer { executed }),
        5 => any::<usize>().prop_map(Step::Poll),
        2 => any::<usize>().prop_map(Step::DropCall),
        4 => any::<usize>().prop_map(Step::DropGuard),
        1 => Just(Step::Remove),
        1 => Just(Step::Message),
        2 => Just(Step::Tick),
    ]
}

struct World {
    state: State,
    io: Io,
    name: Arc<LockName>,
    owners: [Owner; 3],
    calls: Vec<Arc<Call>>,
    guards: Vec<Grant>,
    /// The key: who holds it, how often.
    key: Option<(ThreadId, u32)>,
    removed: HashSet<ThreadId>,
}

impl World {
    fn new() -> Self {
        World {
            state: State::new(),
            io: Io::new(Config::new("redis://unused")),
            name: Arc::new(LockName::new("k", None)),
            owners: [Owner::new(), Owner::new(), Owner::new()],
            calls: Vec::new(),
            guards: Vec::new(),
            key: None,
            removed: HashSet::new(),
        }
    }

    fn request(&self, owner: usize, once: bool, watched: bool) -> Request {
        Request {
            name: self.name.clone(),
            owner: self.owners[owner],
            patience: if once { Patience::Once } else { Patience::Until(Moment::FAR) },
            lease: Lease::new(Duration::from_secs(3600)).unwrap(),
            watched,
            max_hold: None,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Call { owner, once, watched } => {
                let request = self.request(owner, once, watched);
                let call = Call::new(request, Moment::now());
                self.state.begin(&self.io, &call);
                self.calls.push(call);
            }
            Step::BriefCall { owner } => {
                let lease = Lease::new(Duration::from_millis(1)).unwrap();
                let call = Call::new(Request { lease, ..self.request(owner, false, false) }, Moment::now());
                self.state.begin(&self.io, &call);
                self.calls.push(call);
            }
            Step::Deliver => self.deliver(|world, op| Ok(world.execute(op))),
            Step::LoseAnswer { executed } => self.deliver(|world, op| {
                if executed {
                    world.execute(op);
                }
                Err(Failure::Unknown(Trouble::Timeout))
            }),
            Step::Poll(n) if !self.calls.is_empty() => {
                let n = n % self.calls.len();
                let mut cx = Context::from_waker(std::task::Waker::noop());
                if let Poll::Ready(found) = self.calls[n].poll(&mut cx) {
                    self.calls.remove(n);
                    if let Found::Outcome(Ok(Some(grant))) = found {
                        self.guards.push(grant);
                    }
                }
            }
            Step::DropCall(n) if !self.calls.is_empty() => {
                let call = self.calls.remove(n % self.calls.len());
                match call.abandon() {
                    Some(grant) => self.state.leave(&self.io, grant.thread, grant.watched, None),
                    None => self.state.withdraw(&self.io, &call),
                }
            }
            Step::DropGuard(n) if !self.guards.is_empty() => {
                let grant = self.guards.remove(n % self.guards.len());
                self.state.leave(&self.io, grant.thread, grant.watched, None);
            }
            Step::Remove => self.removed.extend(self.key.take().map(|(thread, _)| thread)),
            Step::Message => self.state.heard(&self.io, self.name.channel()),
            Step::Tick => self.tick(),
            Step::Poll(_) | Step::DropCall(_) | Step::DropGuard(_) => {}
        }
    }

    /// What the scripts do.
    fn execute(&mut self, op: &Op) -> Reply {
        match op {
            Op::Acquire { thread, count, lease, .. } => match self.key {
                Some((holder, _)) if holder == *thread => {
                    self.key = Some((*thread, *count));
                    Reply::Acquired
                }
                _ if *count > 1 => Reply::Gone,
                Some(_) => Reply::Held { ttl: Some(Duration::from_secs(3600)) },
                None => {
                    // A brief lease is over at once.
                    self.key = (lease.as_millis() > 1).then_some((*thread, 1));
                    Reply::Acquired
                }
            },
            Op::Release { thread, remaining, .. } => match &mut self.key {
                Some((holder, count)) if holder == thread && *remaining > 0 => {
                    *count = *remaining;
                    Reply::Kept
                }
                Some((holder, _)) if holder == thread => {
                    self.key = None;
                    Reply::Released { receivers: Some(0) }
                }
                _ => Reply::NotHolder { by: None },
            },
            Op::Renew { holds, .. } => Reply::Renewed(
                holds
                    .iter()
                    .map(|(_, thread)| match self.key {
                        Some((holder, _)) if holder == *thread => Renewal::Renewed,
                        _ => Renewal::NotHeld,
                    })
                    .collect(),
            ),
            Op::HoldCount { thread, .. } => match self.key {
                Some((holder, count)) if holder == *thread => Reply::HoldCount(count.into()),
                _ => Reply::HoldCount(0),
            },
            other => panic!("not asked by the state: {other:?}"),
        }
    }

    fn deliver(&mut self, outcome: impl FnOnce(&mut Self, &Op) -> Result<Reply, Failure>) {
        let Some((op, tag)) = self.io.pushed.lock().pop_front() else { return };
        let result = outcome(self, &op);
        let answer = Answer { result, handed: Moment::now(), first_epoch: 1, last_epoch: 1 };
        self.state.on_answer(&self.io, tag, answer);
    }

    fn tick(&mut self) {
        let later = Moment::now().after(Duration::from_secs(60));
        let mut due = Vec::new();
        let threads: Vec<_> = self.state.holds.keys().copied().collect();
        for thread in threads {
            if !matches!(self.state.holds.get(&thread).map(|h| &h.phase), Some(Phase::Doubtful(_))) {
                self.state.look_at_hold(&self.io, thread, later, &mut due);
            }
        }
        self.state.renew(&self.io, &due);
        if let Some(key) = self.state.keys.get_mut(&self.name) {
            key.try_at = key.try_at.map(|_| Moment::now());
        }
        let name = self.name.clone();
        self.state.look_at_key(&self.io, &name, Moment::now());
    }

    /// No guard says that it is held while the server says otherwise, unless the key was removed under it.
    fn check(&self) {
        for guard in &self.guards {
            if guard.hold.end().is_none() && !self.removed.contains(&guard.thread) {
                let holder = self.key.map(|(thread, _)| thread);
                assert_eq!(holder, Some(guard.thread), "a guard that does not know that it is lost");
            }
        }
    }

    /// At rest, nobody waits for a lock without a moment at which to look again, unless it is held here.
    fn check_waiters(&self) {
        for key in self.state.keys.values().filter(|key| !key.queue.is_empty()) {
            assert!(key.active.is_some() || key.try_at.is_some(), "a waiter that sleeps for ever");
        }
    }

    /// Everything in flight is answered, and answered again what that leads to.
    fn settle(&mut self) {
        for _ in 0..1000 {
            if self.io.pushed.lock().is_empty() {
                return self.check_waiters();
            }
            self.take(Step::Deliver);
            self.check();
        }
        panic!("it never comes to rest");
    }

    fn doubtful(&self) -> HashSet<ThreadId> {
        let doubtful = |(t, h): (&ThreadId, &super::state::Hold)| matches!(h.phase, Phase::Doubtful(_)).then_some(*t);
        self.state.holds.iter().filter_map(doubtful).collect()
    }
}

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

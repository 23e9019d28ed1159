//! A few sentences, and the law: replicas that take turns in any order, with Secrets lost and clocks running on, never
//! serve what is not trusted.

use proptest::{collection::vec, prelude::*};

use super::*;

const GOOD: Standing = Standing { fit: true, due: false, trust: Trust::Settled, served: true };

fn facts(current: Standing, next: Option<Standing>) -> Facts {
    Facts { stored: Some(Stored { current, next }), served: Served::Fit, must_publish: false }
}

#[test]
fn nothing_is_done_while_all_is_well() {
    assert_eq!(next_step(&facts(GOOD, None)), Step::Rest);
}

#[test]
fn a_lost_secret_is_written_again_from_what_is_served() {
    let lost = Facts { stored: None, served: Served::Fit, must_publish: false };
    assert_eq!(next_step(&lost), Step::Restore);
    assert_eq!(next_step(&Facts { served: Served::Nothing, ..lost }), Step::Found);
    assert_eq!(next_step(&Facts { served: Served::Unfit, ..lost }), Step::Found);
}

#[test]
fn a_new_leaf_waits_until_its_ca_is_trusted_everywhere() {
    let new = Standing { served: false, ..GOOD };
    for (trust, must_publish, step) in [
        (Trust::Lacking, true, Step::Publish),
        (Trust::Fresh, false, Step::Settle),
        (Trust::Settled, false, Step::Serve),
    ] {
        let facts = Facts { must_publish, ..facts(Standing { trust, ..new }, None) };
        assert_eq!(next_step(&facts), step, "{trust:?}");
    }
}

#[test]
fn togettoyou_makes_a_new_certificate_at_each_start() {
    // togettoyou/sidecar-injector `main.go`; a start here serves what is stored, and writes nothing.
    let stored = Some(Stored { current: Standing { served: false, ..GOOD }, next: None });
    let start = Facts { stored, served: Served::Nothing, must_publish: false };
    assert_eq!(next_step(&start), Step::Serve);
    assert_eq!(next_step(&facts(GOOD, None)), Step::Rest);
}

#[test]
fn what_is_due_or_unfit_gets_a_successor_but_is_never_served_anew() {
    assert_eq!(next_step(&facts(Standing { due: true, ..GOOD }, None)), Step::Renew);
    assert_eq!(next_step(&facts(Standing { fit: false, served: false, ..GOOD }, None)), Step::Renew);
    let unfit_next = Standing { fit: false, served: false, ..GOOD };
    assert_eq!(next_step(&facts(GOOD, Some(unfit_next))), Step::Renew);
}

/// A generation ends at this time; its number is its index.
const LIFE: u32 = 30;

/// How long trust takes to be known everywhere.
const SETTLE: u32 = 2;

#[derive(Clone, Debug, Default)]
struct World {
    now: u32,
    /// When each generation ends.
    ends: Vec<u32>,
    secret: Option<(usize, Option<usize>)>,
    secret_version: u32,
    bundle: Vec<usize>,
    bundle_version: u32,
}

#[derive(Clone, Debug, Default)]
struct Replica {
    serves: Option<usize>,
    /// Since when it has seen each generation trusted without a break.
    trusted_since: Vec<(usize, u32)>,
    /// What it looked at, to act on later: that is what races are made of.
    seen: Option<World>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Look(usize),
    Act(usize),
    Restart(usize),
    LoseSecret,
    Pass,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..3_usize).prop_map(Event::Look),
        8 => (0..3_usize).prop_map(Event::Act),
        1 => (0..3_usize).prop_map(Event::Restart),
        1 => Just(Event::LoseSecret),
        4 => Just(Event::Pass),
    ]
}

impl Replica {
    fn look(&mut self, world: &World) {
        self.trusted_since.retain(|(generation, _)| world.bundle.contains(generation));
        for generation in &world.bundle {
            if !self.trusted_since.iter().any(|(known, _)| known == generation) {
                self.trusted_since.push((*generation, world.now));
            }
        }
        self.seen = Some(world.clone());
    }

    fn standing(&self, seen: &World, generation: usize) -> Standing {
        let since = self.trusted_since.iter().find(|(known, _)| *known == generation);
        Standing {
            fit: seen.ends[generation] >= seen.now,
            due: seen.ends[generation] < seen.now + LIFE / 3,
            trust: match since {
                None => Trust::Lacking,
                Some((_, since)) if seen.now - since < SETTLE => Trust::Fresh,
                Some(_) => Trust::Settled,
            },
            served: self.serves == Some(generation),
        }
    }

    fn act(&mut self, world: &mut World) {
        let Some(seen) = self.seen.take() else { return };
        let stored = seen.secret.map(|(current, next)| Stored {
            current: self.standing(&seen, current),
            next: next.map(|next| self.standing(&seen, next)),
        });
        let wanted: Vec<usize> =
            seen.secret.iter().flat_map(|(one, other)| [Some(*one), *other]).flatten().collect();
        let is_over = |generation: &usize| seen.ends[*generation] < seen.now;
        let facts = Facts {
            stored,
            served: match self.serves {
                None => Served::Nothing,
                Some(it) if is_over(&it) => Served::Unfit,
                Some(_) => Served::Fit,
            },
            must_publish: wanted.iter().any(|it| !is_over(it) && !seen.bundle.contains(it))
                || seen.bundle.iter().any(is_over),
        };
        let step = next_step(&facts);
        let current = seen.secret.map(|(current, _)| current);
        let new_secret = match step {
            Step::Found => Some((world.make(), None)),
            Step::Restore => Some((self.serves.unwrap(), None)),
            Step::Promote => Some((seen.secret.unwrap().1.unwrap(), None)),
            Step::Renew => Some((current.unwrap(), Some(world.make()))),
            Step::Serve => {
                self.serves = current;
                None
            }
            Step::Publish if seen.bundle_version == world.bundle_version => {
                world.bundle.retain(|it| !is_over(it));
                let missing = wanted.into_iter().filter(|it| !is_over(it) && !seen.bundle.contains(it));
                world.bundle.extend(missing);
                world.bundle_version += 1;
                None
            }
            Step::Publish | Step::Settle | Step::Rest => None,
        };
        if new_secret.is_some() && seen.secret_version == world.secret_version {
            world.secret = new_secret;
            world.secret_version += 1;
        }
    }
}

impl World {
    fn make(&mut self) -> usize {
        self.ends.push(self.now + LIFE);
        self.ends.len() - 1
    }

    fn take(&mut self, event: Event, replicas: &mut [Replica]) {
        match event {
            Event::Look(one) => replicas[one].look(self),
            Event::Act(one) => replicas[one].act(self),
            Event::Restart(one) => replicas[one] = Replica::default(),
            Event::LoseSecret => {
                self.secret = None;
                self.secret_version += 1;
            }
            Event::Pass => self.now += 1,
        }
    }

    /// What an apiserver would find at each replica.
    fn assert_trusted(&self, replicas: &[Replica]) {
        for served in replicas.iter().filter_map(|it| it.serves) {
            let over = self.ends[served] < self.now;
            assert!(over || self.bundle.contains(&served), "{served} is served and not trusted: {self:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_replica_ever_serves_what_is_not_trusted(events in vec(event(), 0..400)) {
        let mut world = World::default();
        let mut replicas = vec![Replica::default(); 3];
        for event in events {
            world.take(event, &mut replicas);
            world.assert_trusted(&replicas);
        }
    }

    #[test]
    fn replicas_that_go_on_all_come_to_serve_one_valid_generation(events in vec(event(), 0..200)) {
        let mut world = World::default();
        let mut replicas = vec![Replica::default(); 3];
        for event in events {
            world.take(event, &mut replicas);
        }
        for _ in 0..LIFE {
            for _ in 0..4 {
                for replica in &mut replicas {
                    replica.look(&world);
                    replica.act(&mut world);
                    world.assert_trusted(std::slice::from_ref(replica));
                }
            }
            world.now += 1;
        }
        let current = world.secret.map(|(current, _)| current);
        prop_assert!(replicas.iter().all(|it| it.serves == current), "{world:?} {replicas:?}");
        prop_assert!(current.is_some_and(|it| world.ends[it] >= world.now));
    }
}

//! A simulated raft cluster: elections with terms, transfer of leadership, pauses, asymmetric partitions, slow disks and
//! stale confirmed reads. Messages arrive within one tick, or not at all.

mod membership;
pub(crate) mod reads;
pub(crate) mod service;

use std::time::Duration;

use tokio::time::Instant;

/// Interval between heartbeats: the default of etcd.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Election timeout: the default of etcd. A follower waits for one to two of them.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The cluster and the network between its members.
pub(crate) struct Cluster {
    pub(crate) id: u64,
    pub(crate) members: Vec<Member>,
    /// Directed links that carry no messages, with the time since which they are cut.
    pub(crate) cut: Vec<(usize, usize, Instant)>,
    /// Whether candidates ask for votes before they raise their term (3.5 and later).
    pub(crate) pre_vote: bool,
    /// Whether a deposed leader can confirm reads after a pause (etcd issue 20418).
    pub(crate) confirms_stale_reads: bool,
    pub(crate) version: &'static str,
    /// The time of the last change of the membership.
    pub(crate) changed_at: Option<Instant>,
    next_tick: Instant,
}

/// A member of the cluster. Everything but `is_up` survives a restart.
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) is_learner: bool,
    /// What the member lists say, with a defect of etcd, in the place of `is_learner`.
    pub(crate) is_listed_as_learner: Option<bool>,
    /// The term in which the member voted last.
    pub(crate) voted_in: u64,
    /// Whether the member has left the cluster.
    pub(crate) is_removed: bool,
    /// Address at which the member listens for clients.
    pub(crate) address: String,
    pub(crate) is_up: bool,
    pub(crate) is_paused: bool,
    /// After a pause, the messages that arrived meanwhile are processed until then.
    pub(crate) is_catching_up_until: Instant,
    /// The disk does not complete writes: the member acknowledges and applies nothing.
    pub(crate) has_slow_disk: bool,
    pub(crate) term: u64,
    pub(crate) role: Role,
    pub(crate) leader: Option<usize>,
    pub(crate) log: u64,
    /// Index and term of the last applied entry.
    pub(crate) applied: (u64, u64),
    last_heard: Instant,
    timeout: Duration,
    /// Time of the last acknowledgement of each member, of a leader.
    acks: Vec<Option<Instant>>,
    /// Whether an entry of the leader's own term is committed.
    has_committed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Follower,
    Leader,
}

// === impl Cluster ===

impl Cluster {
    pub(crate) fn new(names: &[String], learners: usize, now: Instant) -> Self {
        let voters = names.len() - learners;
        let member = |(index, name): (usize, &String)| Member {
            id: 0xe7cd_0001 + u64::try_from(index).unwrap(),
            name: name.clone(),
            is_learner: index >= voters,
            is_listed_as_learner: None,
            voted_in: 0,
            is_removed: false,
            address: String::new(),
            is_up: false,
            is_paused: false,
            is_catching_up_until: now,
            has_slow_disk: false,
            term: 1,
            role: Role::Follower,
            leader: None,
            log: 1,
            applied: (1, 1),
            last_heard: now,
            timeout: ELECTION_TIMEOUT,
            acks: vec![None; names.len()],
            has_committed: false,
        };
        Self {
            id: 0xc1,
            members: names.iter().enumerate().map(member).collect(),
            cut: Vec::new(),
            pre_vote: true,
            confirms_stale_reads: false,
            version: "3.5.35",
            changed_at: None,
            next_tick: now,
        }
    }

    pub(crate) fn voters(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|member| {
            let state = &self.members[*member];
            !state.is_learner && !state.is_removed
        })
    }

    pub(crate) fn quorum(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// Returns the member with the highest term among the leaders whose processes run.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leads = |member: &usize| {
            let state = &self.members[*member];
            state.role == Role::Leader && state.takes_part()
        };
        (0..self.members.len()).filter(leads).max_by_key(|member| self.members[*member].term)
    }

    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|member| member.name == name)
    }

    /// Whether a message from one member reaches another one now.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        self.members[from].takes_part()
            && self.members[to].takes_part()
            && !self.cut.iter().any(|(a, b, _)| (*a, *b) == (from, to))
    }

    pub(crate) fn reach_each_other(&self, a: usize, b: usize) -> bool {
        a == b || self.reaches(a, b) && self.reaches(b, a)
    }

    pub(crate) fn cut_link(&mut self, from: usize, to: usize) {
        if !self.cut.iter().any(|(a, b, _)| (*a, *b) == (from, to)) {
            self.cut.push((from, to, Instant::now()));
        }
    }

    pub(crate) fn restore_link(&mut self, from: usize, to: usize) {
        if let Some(index) = self.cut.iter().position(|(a, b, _)| (*a, *b) == (from, to)) {
            self.cut.remove(index);
        }
    }

    /// Starts the process of a member at an address. The process of a removed member ends at once.
    pub(crate) fn start(&mut self, member: usize, address: &str) {
        let member = &mut self.members[member];
        if member.is_removed {
            return;
        }
        let now = Instant::now();
        (member.is_up, member.is_paused, member.address) = (true, false, address.to_owned());
        (member.role, member.leader, member.last_heard) = (Role::Follower, None, now);
        member.is_catching_up_until = now;
    }

    pub(crate) fn stop(&mut self, member: usize) {
        let member = &mut self.members[member];
        (member.is_up, member.role, member.leader) = (false, Role::Follower, None);
    }

    /// Removes a member from the cluster. Its process ends.
    pub(crate) fn remove(&mut self, member: usize) {
        self.stop(member);
        self.members[member].is_removed = true;
    }

    /// Continues a paused process. Its messages of the past are processed for a while.
    pub(crate) fn resume(&mut self, member: usize, rng: &mut fastrand::Rng) {
        let member = &mut self.members[member];
        member.is_paused = false;
        member.is_catching_up_until = Instant::now() + Duration::from_millis(rng.u64(50..900));
    }

    /// Runs all ticks until now.
    pub(crate) fn tick(&mut self, now: Instant, rng: &mut fastrand::Rng) {
        while self.next_tick <= now {
            let at = self.next_tick;
            for member in 0..self.members.len() {
                let state = &self.members[member];
                if !state.takes_part() || state.is_catching_up_until > at {
                    continue;
                }
                match state.role {
                    Role::Leader => self.lead(member, at),
                    Role::Follower => self.follow(member, at, rng),
                }
            }
            self.next_tick += TICK;
        }
    }

    /// Whether a member processes the messages that reach it.
    fn processes(&self, member: usize, at: Instant) -> bool {
        self.members[member].takes_part() && self.members[member].is_catching_up_until <= at
    }

    /// Sends heartbeats and entries, commits, and steps down without a quorum.
    fn lead(&mut self, leader: usize, at: Instant) {
        let term = self.members[leader].term;
        self.members[leader].acks[leader] = Some(at);
        for peer in 0..self.members.len() {
            if peer == leader || !self.reaches(leader, peer) || !self.processes(peer, at) {
                continue;
            }
            if self.members[peer].term > term {
                if self.reaches(peer, leader) {
                    let newer = self.members[peer].term;
                    self.members[leader].step_down(newer, at);
                    return;
                }
                continue;
            }
            let log = self.members[leader].log;
            let follower = &mut self.members[peer];
            (follower.term, follower.role, follower.leader) = (term, Role::Follower, Some(leader));
            follower.last_heard = at;
            if !follower.has_slow_disk {
                follower.log = log;
                if self.reaches(peer, leader) {
                    self.members[leader].acks[peer] = Some(at);
                }
            }
        }
        let acked = |since: Instant, members: &Self| {
            let is_recent =
                |voter: &usize| members.members[leader].acks[*voter].is_some_and(|ack| ack >= since);
            members.voters().filter(is_recent).count() >= members.quorum()
        };
        if acked(at, self) && !self.members[leader].has_slow_disk {
            self.members[leader].has_committed = true;
            self.members[leader].log += 1;
        }
        if self.members[leader].has_committed {
            self.apply(leader, term, at);
        }
        let since = self.members[leader].last_heard.max(at.checked_sub(ELECTION_TIMEOUT).unwrap_or(at));
        let led_for = at.duration_since(self.members[leader].last_heard);
        if led_for >= ELECTION_TIMEOUT && !acked(since, self) {
            let term = self.members[leader].term;
            self.members[leader].step_down(term, at);
        }
    }

    /// Applies the committed entries at the leader and at each follower that received them.
    fn apply(&mut self, leader: usize, term: u64, at: Instant) {
        let index = self.members[leader].log.saturating_sub(1);
        for (number, member) in self.members.iter_mut().enumerate() {
            let follows = number == leader || member.leader == Some(leader) && member.last_heard == at;
            if follows && !member.has_slow_disk && member.log >= index {
                member.applied = (index, term);
            }
        }
    }

    /// Starts an election if no leader was heard in time.
    fn follow(&mut self, member: usize, at: Instant, rng: &mut fastrand::Rng) {
        let state = &mut self.members[member];
        let silence = at.duration_since(state.last_heard);
        if silence >= ELECTION_TIMEOUT && state.leader.is_some() && silence >= state.timeout {
            state.leader = None;
        }
        if silence < state.timeout || state.is_learner || state.has_slow_disk {
            return;
        }
        state.last_heard = at;
        let millis = u64::try_from(ELECTION_TIMEOUT.as_millis()).unwrap();
        state.timeout = Duration::from_millis(rng.u64(millis..2 * millis));
        if !self.pre_vote || self.wins(member, at, self.members[member].term + 1, false) {
            self.campaign(member, at, false);
        }
    }

    /// Starts an election. After a transfer, voters ignore that their leader is alive.
    fn campaign(&mut self, candidate: usize, at: Instant, is_transfer: bool) -> bool {
        let term = self.members[candidate].term + 1;
        let wins = self.wins(candidate, at, term, is_transfer);
        (self.members[candidate].term, self.members[candidate].leader) = (term, None);
        self.members[candidate].voted_in = term;
        let granting: Vec<usize> =
            self.voters().filter(|voter| self.grants(*voter, candidate, at, term, is_transfer)).collect();
        for voter in (0..self.members.len()).filter(|voter| *voter != candidate) {
            if granting.contains(&voter) {
                self.members[voter].step_down(term, at);
                self.members[voter].voted_in = term;
            } else if self.reaches(candidate, voter) && self.processes(voter, at) {
                self.members[voter].learn_term(term, at);
            }
        }
        if wins {
            let count = self.members.len();
            let state = &mut self.members[candidate];
            (state.role, state.leader, state.has_committed) = (Role::Leader, Some(candidate), false);
            (state.acks, state.last_heard) = (vec![None; count], at);
            state.log += 1;
        }
        wins
    }

    fn wins(&self, candidate: usize, at: Instant, term: u64, is_transfer: bool) -> bool {
        let votes = self.voters().filter(|voter| self.grants(*voter, candidate, at, term, is_transfer));
        votes.count() >= self.quorum()
    }

    fn grants(&self, voter: usize, candidate: usize, at: Instant, term: u64, is_transfer: bool) -> bool {
        if voter == candidate {
            return true;
        }
        let state = &self.members[voter];
        let has_leader = state.leader.is_some() && at.duration_since(state.last_heard) < ELECTION_TIMEOUT;
        self.reach_each_other(voter, candidate)
            && self.processes(voter, at)
            && !state.has_slow_disk
            && state.term < term
            && (is_transfer || !has_leader)
            && self.members[candidate].log >= state.log
    }

    /// Transfers the leadership. Returns whether the transferee leads.
    pub(crate) fn transfer(&mut self, leader: usize, transferee: usize, now: Instant) -> bool {
        let is_possible = self.members[leader].role == Role::Leader
            && self.reach_each_other(leader, transferee)
            && self.processes(transferee, now)
            && !self.members[transferee].is_learner
            && !self.members[transferee].has_slow_disk;
        if !is_possible {
            return false;
        }
        // The leader stops to accept proposals until the transferee has all entries.
        let log = self.members[leader].log;
        self.members[transferee].log = log;
        self.campaign(transferee, now, true)
    }

    /// Returns the index of a member by its id.
    pub(crate) fn index_of_id(&self, id: u64) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }
}

// === impl Member ===

impl Member {
    /// Whether the member lists say that the member is a learner.
    pub(crate) fn is_listed_learner(&self) -> bool {
        self.is_listed_as_learner.unwrap_or(self.is_learner)
    }

    /// Whether the process runs.
    pub(crate) fn takes_part(&self) -> bool {
        self.is_up && !self.is_paused
    }

    /// Adopts the term of a candidate that does not get the vote, unless a leader was heard recently. Otherwise two voters could
    /// refuse each other for ever: one with the longer log, and one with the higher term.
    fn learn_term(&mut self, term: u64, at: Instant) {
        let has_leader = self.leader.is_some() && at.duration_since(self.last_heard) < ELECTION_TIMEOUT;
        if self.role == Role::Follower && !has_leader && self.term < term {
            (self.term, self.leader) = (term, None);
        }
    }

    fn step_down(&mut self, term: u64, at: Instant) {
        (self.term, self.role, self.leader, self.last_heard) = (term, Role::Follower, None, at);
    }
}

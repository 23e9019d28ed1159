//! Replacements and defragmentations under faults: the command, a replica of the guard, a member or the API server fails at any moment.
//! The command is repeated until it is complete, and a client writes all the time.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use etcd_client::{Client, Error, GetOptions, SortOrder, SortTarget};
use fastrand::Rng;
use test_support::{
    guard::{cli, process::GuardProcess},
    guarded_cluster::{GuardedCluster, Setup},
    layout::Layout,
    process_node::{ProcessAction, RESOLVES_NAMES},
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    cluster::{Turn, start_replica},
    defragmentation::{assert_defragmented, fragment},
};

/// Number of rounds of a replacement and a defragmentation; `scripts/prove maintenance` sets it.
const ROUNDS: &str = "MAINTENANCE_ROUNDS";

/// Seed of the moments at which the faults take place; 1 without it.
const SEED: &str = "MAINTENANCE_SEED";

/// Rounds in `scripts/test`: one with each of the first faults.
const SAMPLE: usize = 2;

/// The latest moments of a fault after the start of a replacement and of a defragmentation, which take longer than that.
const MAX_DELAY: Duration = Duration::from_secs(8);
const MAX_DELAY_OF_DEFRAGMENTATION: Duration = Duration::from_secs(1);

/// The longest time without an acknowledged write: a put that times out, an election, and a new connection.
const MAX_GAP: Duration = Duration::from_secs(15);

/// Time in which the API server or a replica does not respond.
const OUTAGE: Duration = Duration::from_secs(5);

/// Attempts of a command. Each fault can end one.
const ATTEMPTS: usize = 5;

const PAUSE_BETWEEN_WRITES: Duration = Duration::from_millis(40);

const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// Keys that are read at a time.
const PAGE: i64 = 5_000;

/// What fails while a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The command is killed.
    Command,
    /// The leader or the other follower is killed, and starts again.
    Member,
    /// One of two replicas of the guard is killed, and starts again later.
    Guard,
    /// The API server does not respond for a while.
    ApiServer,
}

const FAULTS: [Fault; 4] = [Fault::Command, Fault::Member, Fault::Guard, Fault::ApiServer];

/// A client that writes one key after the other.
struct Writer {
    ends: Arc<AtomicBool>,
    task: JoinHandle<Written>,
}

#[derive(Default)]
struct Written {
    /// The numbers of acknowledged keys, in ascending order.
    acknowledged: Vec<u64>,
    /// The longest time without an acknowledgement.
    gap: Duration,
}

fn key(number: u64) -> String {
    format!("acknowledged/{number:08}")
}

impl Writer {
    fn start(etcd: &GuardedCluster) -> Self {
        let members: Vec<_> = GuardedCluster::names().iter().map(|name| etcd.member(name)).collect();
        let ends = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::clone(&ends);
        let task = tokio::spawn(async move {
            let (mut written, mut last) = (Written::default(), Instant::now());
            let mut client: Option<Client> = None;
            for number in 0.. {
                if has_ended.load(Ordering::Relaxed) {
                    break;
                }
                if client.is_none() {
                    let index = usize::try_from(number).unwrap() % members.len();
                    client = members[index].client().await.ok();
                }
                let Some(connected) = &mut client else {
                    sleep(PAUSE_BETWEEN_WRITES).await;
                    continue;
                };
                let put = connected.put(key(number), number.to_string(), None);
                if let Ok(Ok(_)) = timeout(WRITE_LIMIT, put).await {
                    written.gap = written.gap.max(last.elapsed());
                    last = Instant::now();
                    written.acknowledged.push(number);
                } else {
                    client = None;
                }
                sleep(PAUSE_BETWEEN_WRITES).await;
            }
            written.gap = written.gap.max(last.elapsed());
            written
        });
        Self { ends, task }
    }

    async fn end(self) -> Written {
        self.ends.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// Returns the numbers of all keys of the writer, by linearizable reads. Panics if a value is not the written one.
async fn stored(etcd: &GuardedCluster) -> Result<Vec<u64>, Error> {
    let mut client = etcd.member(&etcd.leader().await).client().await?;
    let mut numbers = Vec::new();
    loop {
        let options = GetOptions::new().with_range(key(99_999_999)).with_limit(PAGE);
        let options = options.with_sort(SortTarget::Key, SortOrder::Ascend);
        let next = numbers.last().map_or(0, |last: &u64| last + 1);
        let page = client.get(key(next), Some(options)).await?;
        for pair in page.kvs() {
            let number: u64 = pair.value_str()?.parse().unwrap();
            assert_eq!(pair.key_str()?, key(number));
            numbers.push(number);
        }
        if !page.more() {
            return Ok(numbers);
        }
    }
}

/// Runs a command until it is complete. The fault takes place once, at a random moment of the first attempt. Returns whether the command
/// ran at that moment.
async fn run_under(
    fault: Fault,
    etcd: &mut GuardedCluster,
    rng: &mut Rng,
    command: &str,
    arguments: &[&str],
    (replica, others): (&mut GuardProcess, &[String; 2]),
) -> bool {
    let max_delay = if command == "defrag" { MAX_DELAY_OF_DEFRAGMENTATION } else { MAX_DELAY };
    let delay = max_delay.mul_f64(rng.f64());
    let (mut outputs, mut is_hit) = (Vec::new(), false);
    for attempt in 0..ATTEMPTS {
        let mut program = tokio::process::Command::from(cli::program(etcd, command, arguments));
        program.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let child = program.spawn().unwrap();
        let output = tokio::spawn(child.wait_with_output());
        if attempt == 0 {
            sleep(delay).await;
            is_hit = !output.is_finished();
            match fault {
                Fault::Command => output.abort(),
                Fault::Member => etcd.apply(&others[usize::from(rng.bool())], ProcessAction::Kill).await,
                Fault::Guard => {
                    let guard = if rng.bool() { &mut etcd.guard } else { &mut *replica };
                    guard.kill();
                    sleep(OUTAGE).await;
                    guard.restart().await;
                }
                Fault::ApiServer => {
                    etcd.control_plane.freeze("kube-apiserver").await;
                    sleep(OUTAGE).await;
                    etcd.control_plane.thaw("kube-apiserver");
                }
            }
        }
        match output.await {
            Ok(output) => {
                let output = output.unwrap();
                if output.status.success() {
                    return is_hit;
                }
                outputs.push(format!("{output:?}"));
                sleep(Duration::from_secs(2)).await;
            }
            Err(_) => outputs.push(String::from("killed")),
        }
    }
    panic!(
        "{command} is not complete after {ATTEMPTS} attempts and the fault {fault:?} after {delay:?}: {outputs:#?}"
    );
}

#[tokio::test]
async fn maintenance_under_faults_loses_no_acknowledged_write() {
    let _turn = Turn::start().await;
    let rounds = std::env::var(ROUNDS).map_or(SAMPLE, |rounds| rounds.parse().expect("a number of rounds"));
    let mut rng = Rng::with_seed(std::env::var(SEED).map_or(1, |seed| seed.parse().expect("a seed")));
    let layout = Layout { annotations: vec![(RESOLVES_NAMES, "true")], ..Layout::default() };
    let mut etcd = GuardedCluster::start_as(Setup { layout, handover: true, ..Setup::default() }).await;
    let mut replica = start_replica(&etcd, 1, true).await;
    let mut hits = 0;
    for round in 0..rounds {
        let fault = FAULTS[round % FAULTS.len()];
        let started = Instant::now();
        let writer = Writer::start(&etcd);
        let [replaced, other] = etcd.followers().await;
        let others = [other, etcd.leader().await];
        let old = etcd.member(&replaced).id().await;
        let arguments = [replaced.as_str(), "--no-backup", "--timeout", "3m"];
        let hits_replacement =
            run_under(fault, &mut etcd, &mut rng, "replace", &arguments, (&mut replica, &others)).await;
        etcd.wait_until_healthy().await;
        assert_ne!(etcd.member(&replaced).id().await, old, "round {round}: {replaced} has a new member");
        let of_replacement = started.elapsed();
        fragment(&etcd, 4, 2).await;
        let arguments = ["statefulset/etcd", "--timeout", "3m"];
        let hits_defragmentation =
            run_under(fault, &mut etcd, &mut rng, "defrag", &arguments, (&mut replica, &others)).await;
        hits += usize::from(hits_replacement) + usize::from(hits_defragmentation);
        etcd.wait_until_healthy().await;
        let written = writer.end().await;
        assert_defragmented(&etcd).await;
        assert!(written.gap < MAX_GAP, "round {round}, {fault:?}: no write for {:?}", written.gap);
        assert!(written.acknowledged.len() > 50, "round {round}: {} writes", written.acknowledged.len());
        let stored = stored(&etcd).await.unwrap();
        let lost: Vec<_> =
            written.acknowledged.iter().filter(|number| stored.binary_search(number).is_err()).collect();
        assert!(lost.is_empty(), "round {round}, {fault:?}: lost {lost:?}");
        println!(
            "round {round} {fault:?} {replaced}: hit {hits_replacement} and {hits_defragmentation}, {} acknowledged, 0 lost, longest gap {} ms, \
             replacement {} s, round {} s",
            written.acknowledged.len(),
            written.gap.as_millis(),
            of_replacement.as_secs(),
            started.elapsed().as_secs(),
        );
        let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
        client
            .delete(key(0), Some(etcd_client::DeleteOptions::new().with_range(key(99_999_999))))
            .await
            .unwrap();
    }
    drop(replica);
    // An attempt can end before the fault, for example because the API server was slow.
    assert!(hits >= rounds, "only {hits} of {} faults came while the command ran", rounds * 2);
}

/// Mebibytes of keys in the measurement, which a defragmentation copies.
const DATABASE: u8 = 200;

/// A put of a member waits until its defragmentation has ended.
const DEFRAGMENTATION_LIMIT: Duration = Duration::from_secs(60);

/// The longest times without an acknowledged write: of the clients of one member, and of all clients together.
struct Gaps {
    one_member: Duration,
    cluster: Duration,
}

/// Writes by a client of each member while the work is done.
async fn gaps_during(etcd: &GuardedCluster, work: impl Future<Output = ()>) -> Gaps {
    let ends = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for (index, name) in GuardedCluster::names().iter().enumerate() {
        let (mut client, has_ended) = (etcd.member(name).client().await.unwrap(), Arc::clone(&ends));
        writers.push(tokio::spawn(async move {
            let mut acknowledged = vec![Instant::now()];
            while !has_ended.load(Ordering::Relaxed) {
                let put = client.put(format!("gap/{index}"), "", None);
                // A write fails while leadership moves.
                if let Ok(Ok(_)) = timeout(DEFRAGMENTATION_LIMIT, put).await {
                    acknowledged.push(Instant::now());
                }
                sleep(Duration::from_millis(10)).await;
            }
            acknowledged.push(Instant::now());
            acknowledged
        }));
    }
    work.await;
    ends.store(true, Ordering::Relaxed);
    let longest = |times: &[Instant]| {
        times.windows(2).map(|pair| pair[1].duration_since(pair[0])).max().unwrap_or_default()
    };
    let (mut one_member, mut all) = (Duration::ZERO, Vec::new());
    for writer in writers {
        let acknowledged = writer.await.unwrap();
        one_member = one_member.max(longest(&acknowledged));
        all.extend(acknowledged);
    }
    all.sort_unstable();
    Gaps { one_member, cluster: longest(&all) }
}

/// `etcdctl defrag --cluster` and `kubectl etcd-guard defrag`, in turn, on the same database.
#[tokio::test]
#[ignore = "a measurement, in scripts/prove maintenance"]
async fn gaps_of_defragmentations_by_hand_and_by_the_guard() {
    let _turn = Turn::start().await;
    let etcd = GuardedCluster::start().await;
    let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
    for number in 0..DATABASE {
        client.put(format!("data/{number}"), vec![number; 1 << 20], None).await.unwrap();
    }
    for pair in 0..5 {
        fragment(&etcd, 8, 100).await;
        let by_hand = Box::pin(gaps_during(&etcd, async {
            for name in GuardedCluster::names() {
                etcd.member(name).client().await.unwrap().defragment().await.unwrap();
            }
        }))
        .await;
        fragment(&etcd, 8, 100).await;
        let by_the_guard = Box::pin(gaps_during(&etcd, async {
            let output = cli::run(&etcd, "defrag", &["statefulset/etcd"]).await;
            assert_eq!(output.status, Some(0), "{output:?}");
        }))
        .await;
        let text =
            |gaps: Gaps| format!("{} ms ({} ms)", gaps.cluster.as_millis(), gaps.one_member.as_millis());
        println!(
            "pair {pair}: longest gap of all clients (of one member's) by hand {}, by the guard {}",
            text(by_hand),
            text(by_the_guard)
        );
    }
}

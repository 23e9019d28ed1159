//! Many runs with consecutive seeds, and their summary.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt,
    panic::catch_unwind,
    time::{Duration, Instant},
};

use etcd_guard_core::{mistakes::Mistake, reason::Reason};
use nix::time::{ClockId, clock_gettime};

use test_support::{plot_data::Figure, protocol_trace};

use crate::{
    oracle::{Margin, SAFETY},
    run::{Report, run},
    scenario::Scenario,
    world::panic_text,
};

/// The CPU time of a campaign in seconds, unless the environment sets another one. The test of determinism in the same program
/// takes further CPU time.
const DEFAULT_SECONDS: u64 = 50;

/// The time after which a campaign without a given number of seeds ends, on a machine that is busy.
const MAX_TIME: Duration = Duration::from_secs(100);

/// The minimum number of seeds of a campaign without a given number.
const MIN_SEEDS: u64 = 10;

/// The number of seeds among which each mistake is searched in a run that the comparison with the model covers. About a third of the
/// runs are covered.
const MODELLED_SEEDS: u64 = 100;

/// The counters of operations of persons, which are not faults.
const OPERATIONS: [&str; 6] =
    ["cordon", "deleted StatefulSet", "deleted node", "eviction by name", "replaced member", "scale-down"];

/// The number of seeds after which a line shows the progress.
const PROGRESS_SEEDS: u64 = 50;

/// Simulated time that the figure of margins covers.
const DAY: Duration = Duration::from_secs(86_400);

/// The seeds of a campaign, and its end.
pub(crate) struct Campaign {
    first: u64,
    seeds: u64,
    cpu_time: Duration,
    time: Duration,
    prints_trace: bool,
}

/// The results of a campaign.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) failures: Vec<String>,
    pub(crate) approvals: u32,
    unjudged: BTreeMap<&'static str, u32>,
    seeds: u64,
    cpu_time: Duration,
    simulated: Duration,
    /// The margins of all runs. Times are cumulative, as if the runs followed each other.
    margins: Vec<Margin>,
    verdicts: BTreeMap<(&'static str, &'static str), u32>,
    faults: BTreeMap<&'static str, u32>,
}

fn cpu_time() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap())
}

/// Returns the first of this number of seeds with which a mistake violates the safety invariant, and the violation.
pub(crate) fn first_violation(mistake: Mistake, seeds: u64) -> Option<(u64, String)> {
    (1..=seeds).find_map(|seed| violation(mistake, seed).map(|(text, _)| (seed, text)))
}

/// Returns the first of [`MODELLED_SEEDS`] with which a mistake violates the safety invariant in a run that the comparison with the
/// model covers, and writes the trace of this run for the comparison.
pub(crate) fn write_violation(mistake: Mistake) -> Option<u64> {
    let is_modelled = |seed: &u64| Scenario::of_seed(*seed).is_modelled();
    (1..=MODELLED_SEEDS).filter(is_modelled).find(|&seed| {
        let Some((_, trace)) = violation(mistake, seed) else { return false };
        write_trace(&format!("mistake-{mistake:?}-{seed}"), trace.as_deref());
        true
    })
}

/// Runs a seed with a mistake. Returns the first violation of the safety invariant, and the trace of the run.
fn violation(mistake: Mistake, seed: u64) -> Option<(String, Option<String>)> {
    let report = run(seed, Some(mistake), false);
    let violation = report.violations.iter().find_map(|text| text.strip_prefix(SAFETY).map(str::to_owned))?;
    Some((violation, report.protocol_trace))
}

/// Writes the trace of a run for the comparison with the model, if the environment requests it.
pub(crate) fn write_trace(name: &str, trace: Option<&str>) {
    if let (Some(folder), Some(trace)) = (protocol_trace::folder(), trace) {
        protocol_trace::write(&folder, name, trace);
    }
}

// === impl Campaign ===

impl Campaign {
    pub(crate) fn from_environment() -> Self {
        let number = |name: &str| env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
        let seeds = number("SIMULATION_SEEDS");
        let default_time = if seeds.is_some() { u64::MAX } else { DEFAULT_SECONDS };
        Self {
            first: number("SIMULATION_SEED").unwrap_or(1),
            seeds: seeds.unwrap_or(u64::MAX),
            cpu_time: Duration::from_secs(number("SIMULATION_SECONDS").unwrap_or(default_time)),
            time: if seeds.is_some() { Duration::MAX } else { MAX_TIME },
            prints_trace: env::var_os("SIMULATION_TRACE").is_some(),
        }
    }

    pub(crate) fn run(&self) -> Summary {
        let mut summary = Summary::default();
        let (started, start) = (cpu_time(), Instant::now());
        for seed in self.first..self.first.saturating_add(self.seeds) {
            let report = match catch_unwind(|| run(seed, None, self.prints_trace)) {
                Ok(report) => report,
                Err(panic) => {
                    Mistake::activate(None);
                    summary.fail(&format!("seed {seed}"), &panic_text(panic.as_ref()), seed);
                    break;
                }
            };
            if let Some(text) = &report.text {
                println!("{text}");
            }
            write_trace(&format!("simulation-{seed}"), report.protocol_trace.as_deref());
            summary.cpu_time = cpu_time().saturating_sub(started);
            summary.add(report);
            if summary.seeds.is_multiple_of(PROGRESS_SEEDS) {
                let (seeds, cpu) = (summary.seeds, summary.cpu_time.as_secs());
                eprintln!(
                    "simulation: {seeds} seeds in {cpu} s of CPU time, {} violations",
                    summary.failures.len()
                );
            }
            let has_ended = summary.cpu_time >= self.cpu_time || start.elapsed() >= self.time;
            if has_ended && summary.seeds >= MIN_SEEDS {
                break;
            }
        }
        summary.plot();
        summary
    }
}

// === impl Summary ===

impl Summary {
    /// Writes the data of the figure `margins`: the margins of the first simulated day.
    fn plot(&self) {
        let title = "Voters beyond the quorum after each approval";
        let mut figure = Figure::points(title, "simulated hours", "voters");
        let voters: BTreeSet<usize> = self.margins.iter().map(|margin| margin.voters).collect();
        for (place, voters) in (0_u32..).zip(voters) {
            let of_size = self.margins.iter().filter(|margin| margin.voters == voters && margin.at <= DAY);
            // A vertical offset per cluster size prevents overlapping points.
            let height = |margin: &Margin| {
                f64::from(i32::try_from(margin.remaining).unwrap()) + 0.1 * f64::from(place)
            };
            let points: Vec<(f64, f64)> =
                of_size.map(|margin| (margin.at.as_secs_f64() / 3600.0, height(margin))).collect();
            if !points.is_empty() {
                figure = figure.series(&format!("{voters} voters"), points);
            }
        }
        figure.write("margins");
    }

    /// Adds a failure, and prints it at once, because a long campaign can be interrupted.
    fn fail(&mut self, run: &str, violation: &str, seed: u64) {
        let failure = format!("{run}: {violation}\nreplay it: scripts/simulate --seed {seed} --trace");
        eprintln!("{failure}");
        self.failures.push(failure);
    }

    fn add(&mut self, report: Report) {
        let Report {
            seed,
            scenario,
            violations,
            verdicts,
            faults,
            approvals,
            unjudged,
            margins,
            simulated,
            ..
        } = report;
        for violation in violations {
            self.fail(&format!("seed {seed} ({scenario})"), &violation, seed);
        }
        self.seeds += 1;
        self.approvals += approvals;
        let before = self.simulated;
        self.margins.extend(margins.into_iter().map(|margin| Margin { at: before + margin.at, ..margin }));
        self.simulated += simulated;
        for (cause, count) in unjudged {
            *self.unjudged.entry(cause).or_default() += count;
        }
        for (verdict, count) in verdicts {
            *self.verdicts.entry(verdict).or_default() += count;
        }
        for (fault, count) in faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let smallest = self.margins.iter().map(|margin| margin.remaining).min();
        let (simulated, cpu) = (self.simulated.as_secs_f64(), self.cpu_time.as_secs_f64());
        let (operations, faults): (Vec<_>, Vec<_>) =
            self.faults.iter().partition(|(name, _)| OPERATIONS.contains(name));
        writeln!(
            f,
            "simulation: {} seeds, {:.1} simulated hours in {cpu:.0} s of CPU time ({:.0} simulated hours per CPU hour)",
            self.seeds,
            simulated / 3600.0,
            simulated / cpu.max(0.001)
        )?;
        writeln!(
            f,
            "{} verdicts, {} approvals ({} of them cost a voter that served), {} faults, {} violations; smallest margin above the \
             quorum: {}",
            self.verdicts.values().sum::<u32>(),
            self.approvals,
            self.margins.len(),
            faults.iter().map(|(_, count)| *count).sum::<u32>(),
            self.failures.len(),
            smallest.map_or_else(|| String::from("unknown"), |margin| margin.to_string())
        )?;
        let unjudged = self.unjudged.iter().map(|(cause, count)| format!("{cause}: {count}"));
        writeln!(f, "approvals that are not judged: {}", unjudged.collect::<Vec<_>>().join("; "))?;
        for (title, counters) in [("faults", faults), ("operations", operations)] {
            let counters = counters.iter().map(|(name, count)| format!("{name} {count}"));
            writeln!(f, "{title}: {}", counters.collect::<Vec<_>>().join(", "))?;
        }
        let requests: BTreeSet<&str> = self.verdicts.keys().map(|(request, _)| *request).collect();
        for request in requests {
            let of_request = self.verdicts.iter().filter(|((other, _), _)| *other == request);
            let reasons = of_request.map(|((_, reason), count)| format!("{reason} {count}"));
            writeln!(f, "{request}: {}", reasons.collect::<Vec<_>>().join(", "))?;
        }
        let occurred: BTreeSet<&str> = self.verdicts.keys().map(|(_, reason)| *reason).collect();
        writeln!(f, "{} of {} reasons occurred", occurred.len(), Reason::ALL.len())?;
        let is_missing = |reason: &&Reason| !occurred.contains(reason.as_str());
        let missing: Vec<&str> =
            Reason::ALL.iter().filter(is_missing).map(|reason| reason.as_str()).collect();
        writeln!(f, "reasons that did not occur: {}", missing.join(", "))?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "{failure}"))
    }
}

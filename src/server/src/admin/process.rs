//! The standard metrics of a process, `process_*`, which dashboards of all programs query. Linux only.

use std::{fmt, fs, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

/// Clock ticks per second in /proc: constant on all architectures that Rust supports (`USER_HZ` of the kernel).
const TICKS_PER_SECOND: u64 = 100;

/// Reads /proc at each scrape. Metrics of an unreadable file are omitted.
#[derive(Debug)]
pub(crate) struct ProcessMetrics;

/// Values of /proc/self/stat.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    /// After the start of the system.
    start_ticks: u64,
    virtual_bytes: u64,
}

// === impl ProcessMetrics ===

impl ProcessMetrics {
    /// Registers the metrics in `registry`, which has no prefix.
    pub(crate) fn register(registry: &mut Registry) {
        registry.register_collector(Box::new(Self));
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = |file: &str| fs::read_to_string(format!("/proc/{file}")).ok();
        let stat = read("self/stat").and_then(|text| Stat::parse(&text));
        if let Some(stat) = &stat {
            let help = "CPU time of the process, in user and system mode";
            let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(seconds(stat.cpu_ticks)).encode(metric)?;
        }
        let boot = read("stat").and_then(|text| number_after(&text, "btime"));
        let started_at = stat.as_ref().zip(boot).map(|(stat, boot)| {
            let after_boot = stat.start_ticks.checked_div(TICKS_PER_SECOND).unwrap_or_default();
            boot.saturating_add(after_boot)
        });
        let kilobytes = read("self/status").and_then(|text| number_after(&text, "VmRSS:"));
        let limit = read("self/limits").and_then(|text| number_after(&text, "Max open files"));
        let open = fs::read_dir("/proc/self/fd").ok().and_then(|files| u64::try_from(files.count()).ok());
        let gauges = [
            ("process_start_time_seconds", "Start time of the process since the epoch", started_at),
            (
                "process_resident_memory_bytes",
                "Resident memory of the process",
                kilobytes.map(|kilobytes| kilobytes.saturating_mul(1024)),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory of the process",
                stat.as_ref().map(|stat| stat.virtual_bytes),
            ),
            ("process_open_fds", "Open file descriptors", open),
            ("process_max_fds", "Limit of open file descriptors", limit),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value.and_then(|value| i64::try_from(value).ok()) else { continue };
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}

// === impl Stat ===

impl Stat {
    /// Parses the line of /proc/self/stat, see proc(5).
    fn parse(text: &str) -> Option<Self> {
        // The name of the program, the second field, may contain spaces and parentheses.
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        // The fields are numbered from 1, and the first one here is the third of the line.
        let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)?.saturating_add(field(15)?),
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
        })
    }
}

fn seconds(ticks: u64) -> f64 {
    let milliseconds = ticks.saturating_mul(1000).checked_div(TICKS_PER_SECOND).unwrap_or_default();
    Duration::from_millis(milliseconds).as_secs_f64()
}

/// Returns the first number in the line that begins with `key`.
fn number_after(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_stat_of_programs_with_any_name() {
        let text = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 17 18 1234 4096 20 21\n";
        let expected = Stat { cpu_ticks: 200, start_ticks: 1234, virtual_bytes: 4096 };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1 2"), None);
        assert!((seconds(200) - 2.0).abs() < f64::EPSILON);
    }

    #[test]
    fn reads_numbers_and_skips_unlimited() {
        let limits = "Max processes  unlimited  unlimited\nMax open files            1024                 524288  files\n";
        assert_eq!(number_after(limits, "Max open files"), Some(1024));
        assert_eq!(number_after(limits, "Max processes"), None);
    }
}

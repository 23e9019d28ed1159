//! `kubectl etcd-guard check node/NAME`: previews the drain of a node.

use std::io::Write;

use serde_json::json;

use super::super::guard_flags::GuardFlags;
use crate::maintenance::{
    drain::report::{NodeReport, check_node},
    reporter::write_plan,
};
use etcd_guard_cli::{
    printing::Output,
    terminal::{WARNING, paint},
};
use etcd_guard_core::escape::{MAX_NAME_CHARS, MAX_TEXT_CHARS, to_bounded_line};

/// Prints the plans of the drains of these nodes. Returns whether every member on them can leave.
pub(super) async fn check(guard: GuardFlags, nodes: &[String], output: Output) -> anyhow::Result<bool> {
    let guard = guard.connect().await?;
    let mut reports = Vec::new();
    for node in nodes {
        reports.push(check_node(&guard, node).await?);
    }
    let mut out = anstream::stdout().lock();
    match output {
        Output::Table | Output::Wide => {
            for (number, report) in reports.iter().enumerate() {
                if number > 0 {
                    writeln!(out)?;
                }
                write_plan(&mut out, &report.text())?;
                for problem in &report.problems {
                    let problem = to_bounded_line(problem, MAX_TEXT_CHARS);
                    writeln!(anstream::stderr().lock(), "{}: {problem}", paint(WARNING, "warning"))?;
                }
            }
        }
        Output::Name => {
            for node in nodes {
                writeln!(out, "node/{}", to_bounded_line(node, MAX_NAME_CHARS))?;
            }
        }
        Output::Json | Output::Yaml => {
            match reports.as_slice() {
                [report] => output.write_document(report, &mut out)?,
                several => output.write_document(&json!({"items": several}), &mut out)?,
            };
        }
    }
    out.flush()?;
    Ok(reports.iter().all(NodeReport::completes))
}

//! The result of the checks: a line for each, as a table or JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::{
    reader::Unread,
    sections::{PERMISSIONS_OF_USERS, Section, section_of},
};
use etcd_guard_cli::terminal::{EMPHASIS, FAILURE, SUCCESS, WARNING, paint};
use etcd_guard_core::{
    documentation::Manual,
    escape::{MAX_TEXT_CHARS, to_bounded_line},
};

/// The result of all checks. The fields are those of the JSON output.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    failures: usize,
    warnings: usize,
    checks: Vec<Line>,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Line {
    pub(super) check: &'static str,
    pub(super) state: State,
    pub(super) message: String,
    /// How to correct the state, with a command after the last colon; `None` if the state is `ok`.
    pub(super) remedy: Option<String>,
    /// The section of the manual about the finding; `None` if the state is `ok`.
    documentation: Option<String>,
    #[serde(skip)]
    section: Section,
    /// Whether a read failed that the check requires.
    #[serde(skip)]
    is_unread: bool,
}

/// The state of one checked property, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// The property holds.
    Ok,
    /// The guard works, but less safely, or the property could not be checked.
    Warning,
    /// The guard does not work as documented.
    Failure,
}

/// The checks that concern the API server only.
const UNRELATED: [&str; 2] = ["api-server", "clock"];

/// A deviation that one check found.
pub(super) type Finding = (State, String);

// === impl Report ===

impl Report {
    pub(super) fn new(mut checks: Vec<Line>, manual: &Manual) -> Self {
        for line in checks.iter_mut().filter(|line| line.state > State::Ok) {
            let (page, anchor) = line.section;
            line.documentation = Some(manual.section(page, anchor));
        }
        let count = |state| checks.iter().filter(|line| line.state == state).count();
        Self { failures: count(State::Failure), warnings: count(State::Warning), checks }
    }

    /// Whether no check failed. Warnings are no failures.
    pub(crate) fn is_passed(&self) -> bool {
        self.failures == 0
    }

    /// Whether at least one property of the guard was read. Every user may read the version and the clock of the API
    /// server, which prove nothing about the guard.
    pub(crate) fn has_result(&self) -> bool {
        self.checks.iter().any(|line| !line.is_unread && !UNRELATED.contains(&line.check))
    }

    /// Writes a line for each check, and below it the remedy and the address of its section.
    pub(crate) fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let width = self.checks.iter().map(|line| line.check.len()).max().unwrap_or_default();
        let indent = State::WIDTH;
        writeln!(out, "{:indent$}   {:width$}   MESSAGE", "STATE", "CHECK")?;
        for Line { check, state, message, remedy, documentation, .. } in &self.checks {
            // Computed here, because a format width would count the color codes.
            let pad = State::WIDTH - state.as_str().len();
            let state = state.painted();
            writeln!(out, "{state}{:pad$}   {check:width$}   {message}", "")?;
            if let Some(remedy) = remedy {
                writeln!(out, "{:indent$}   {} {remedy}", "", paint(EMPHASIS, "->"))?;
            }
            if let Some(documentation) = documentation {
                writeln!(out, "{:indent$}   See {documentation}", "")?;
            }
        }
        let Self { failures, warnings, checks } = self;
        let ok = checks.len() - failures - warnings;
        writeln!(out, "ok: {ok}, warnings: {warnings}, failures: {failures}")
    }

    /// Writes the name of each check.
    pub(crate) fn write_names(&self, out: &mut impl Write) -> io::Result<()> {
        self.checks.iter().try_for_each(|line| writeln!(out, "{}", line.check))
    }

    /// Returns a report with this text in every field that contains texts of other systems.
    #[cfg(any(test, feature = "fixtures"))]
    pub(crate) fn with_texts(text: &str) -> Self {
        let unread = Unread::new(text, text);
        let lines = vec![
            Line::ok("clusters", text),
            Line::failure("network", text, text),
            Line::not_checked("webhooks", &unread),
        ];
        Self::new(lines, &Manual::default())
    }
}

// === impl Line ===

impl Line {
    pub(super) fn ok(check: &'static str, message: impl AsRef<str>) -> Self {
        Self::new(check, State::Ok, message.as_ref(), None)
    }

    pub(super) fn warning(check: &'static str, message: impl AsRef<str>, remedy: impl AsRef<str>) -> Self {
        Self::with_remedy(check, State::Warning, message.as_ref(), remedy.as_ref())
    }

    pub(super) fn failure(check: &'static str, message: impl AsRef<str>, remedy: impl AsRef<str>) -> Self {
        Self::with_remedy(check, State::Failure, message.as_ref(), remedy.as_ref())
    }

    /// A check without a result, because a read failed or is not permitted.
    pub(super) fn not_checked(check: &'static str, unread: &Unread) -> Self {
        let line = Self::warning(check, format!("not checked: {}", unread.cause), &unread.remedy);
        let section = if unread.is_forbidden { PERMISSIONS_OF_USERS } else { line.section };
        Self { is_unread: true, section, ..line }
    }

    /// The line for these deviations: `ok` with `message` if there are none, otherwise the worst state with all
    /// deviations. `subject` precedes the text.
    pub(super) fn from_findings(
        check: &'static str,
        subject: &str,
        message: &str,
        findings: &[Finding],
        remedy: impl AsRef<str>,
    ) -> Self {
        let Some(state) = findings.iter().map(|(state, _)| *state).max() else {
            return Self::ok(check, format!("{subject}{message}"));
        };
        let texts: Vec<&str> = findings.iter().map(|(_, text)| text.as_str()).collect();
        Self::with_remedy(check, state, &format!("{subject}{}", texts.join("; ")), remedy.as_ref())
    }

    fn with_remedy(check: &'static str, state: State, message: &str, remedy: &str) -> Self {
        Self::new(check, state, message, Some(escaped(remedy)))
    }

    fn new(check: &'static str, state: State, message: &str, remedy: Option<String>) -> Self {
        let (message, section) = (escaped(message), section_of(check));
        Self { check, state, message, remedy, documentation: None, section, is_unread: false }
    }

    /// Replaces the section of the check by that of the finding.
    pub(super) fn about(self, section: Section) -> Self {
        Self { section, ..self }
    }
}

/// Messages contain texts of the API server, of the guard and of objects.
fn escaped(text: &str) -> String {
    to_bounded_line(text, MAX_TEXT_CHARS)
}

// === impl State ===

impl State {
    /// The length of the longest name.
    const WIDTH: usize = 7;

    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }

    fn painted(self) -> String {
        let style = match self {
            Self::Ok => SUCCESS,
            Self::Warning => WARNING,
            Self::Failure => FAILURE,
        };
        paint(style, self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(report: &Report) -> String {
        let mut out = anstream::StripStream::new(Vec::new());
        report.write_table(&mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn prints_line_per_check_and_remedies() {
        let forbidden = Unread { is_forbidden: true, ..Unread::new("forbidden", "kubectl auth can-i") };
        let lines = vec![
            Line::ok("api-server", "Kubernetes 1.34"),
            Line::warning("replicas", "1 of 2 replicas is ready", "kubectl get pods"),
            Line::failure("network", "no route", "kubectl get svc"),
            Line::not_checked("webhooks", &forbidden),
        ];
        let report = Report::new(lines, &Manual::new("https://docs.example.com/guard"));
        let expected = "\
STATE     CHECK        MESSAGE
ok        api-server   Kubernetes 1.34
warning   replicas     1 of 2 replicas is ready
          -> kubectl get pods
          See https://docs.example.com/guard/alerts.html#etcdguarddown
failure   network      no route
          -> kubectl get svc
          See https://docs.example.com/guard/alerts.html#etcdguardwebhookfailing
warning   webhooks     not checked: forbidden
          -> kubectl auth can-i
          See https://docs.example.com/guard/permissions.html#permissions-of-users
ok: 1, warnings: 2, failures: 1
";
        assert_eq!(table(&report), expected);
        assert!(!report.is_passed());
    }

    #[test]
    fn warnings_and_unread_checks_are_no_failures() {
        let unread = Unread::new("forbidden", "kubectl auth can-i");
        let report = Report::new(vec![Line::not_checked("webhooks", &unread)], &Manual::default());
        assert!(report.is_passed());
        assert_eq!(report.warnings, 1);
    }

    #[test]
    fn report_without_any_read_property_has_no_result() {
        let unread = Unread::new("forbidden", "kubectl auth can-i");
        let mut lines = vec![
            Line::ok("api-server", "1.34"),
            Line::ok("clock", "5 s"),
            Line::not_checked("webhooks", &unread),
        ];
        assert!(!Report::new(lines.clone(), &Manual::default()).has_result());
        lines.push(Line::warning("replicas", "1 of 2 replicas are ready", "kubectl get pods"));
        assert!(Report::new(lines, &Manual::default()).has_result());
    }

    #[test]
    fn worst_finding_determines_the_state() {
        let findings = [
            (State::Warning, String::from("a")),
            (State::Failure, String::from("b")),
            (State::Warning, String::from("c")),
        ];
        let line = Line::from_findings("webhooks", "x: ", "fine", &findings, "apply");
        assert_eq!((line.state, line.message.as_str()), (State::Failure, "x: a; b; c"));
        let line = Line::from_findings("webhooks", "x: ", "fine", &[], "apply");
        assert_eq!((line.state, line.message.as_str(), line.remedy), (State::Ok, "x: fine", None));
    }
}

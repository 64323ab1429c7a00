//! The results of the sections of a self-check, and the line of each. The lines have the form of
//! `worker --self-check`.

use crate::self_check::section::Section;
use crate::BossManError;
use serde_json::{json, Map, Value as Json};
use std::future::Future;
use std::time::{Duration, Instant};

/// Far longer than any section takes.
const LIMIT: Duration = Duration::from_secs(300);

/// The facts of a section, by name.
pub(super) type Figures = Map<String, Json>;

/// What a section found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    text: String,
    figures: Figures,
    skipped: bool,
}

impl Findings {
    /// A section that cannot be checked here, and why.
    pub(super) fn skipped(reason: impl Into<String>) -> Self {
        let text: String = reason.into();
        let skipped = Findings::default().figure("skipped", text.as_str());
        Findings { text, skipped: true, ..skipped }
    }

    /// Findings of the worker program: the end of the line, and the figures.
    pub(super) fn of_worker(text: String, figures: Figures) -> Self {
        let skipped = figures.contains_key("skipped");
        Findings { text, figures, skipped }
    }

    /// Adds a fact.
    pub(super) fn figure(mut self, name: impl Into<String>, value: impl Into<Json>) -> Self {
        self.figures.insert(name.into(), value.into());
        self
    }

    /// Sets the end of the section's line.
    pub(super) fn text(self, text: impl Into<String>) -> Self {
        Findings { text: text.into(), ..self }
    }
}

/// Why a section failed.
#[derive(Debug)]
pub(super) struct Problem {
    /// The problem, and what to do.
    text: String,
    figures: Figures,
}

impl Problem {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Problem { text: text.into(), figures: Figures::new() }
    }

    /// The error of a run, and which run it was.
    pub(super) fn of(run: &str, error: &BossManError) -> Self {
        Problem::new(format!("{run}: {error}"))
    }

    /// Adds the facts that were found nevertheless.
    pub(super) fn with(self, findings: Findings) -> Self {
        Problem { figures: findings.figures, ..self }
    }
}

impl From<BossManError> for Problem {
    fn from(error: BossManError) -> Self {
        Problem::new(error.to_string())
    }
}

/// The result of a section.
#[derive(Debug)]
pub struct SectionResult {
    section: String,
    seconds: f64,
    result: Result<Findings, Problem>,
}

impl SectionResult {
    /// The line for people.
    pub fn text(&self) -> String {
        let SectionResult { section, seconds, result } = self;
        match result {
            Ok(Findings { text, skipped: true, .. }) => format!("{section} ... skipped: {text}"),
            Ok(Findings { text, .. }) => format!("{section} ... ok ({seconds:.1} s): {text}"),
            Err(Problem { text, .. }) => format!("{section} ... failed ({seconds:.1} s): {text}"),
        }
    }

    /// The line for programs: a JSON object.
    pub fn json(&self) -> String {
        let (text, figures, problem) = match &self.result {
            Ok(Findings { text, figures, .. }) => (Some(text), figures, None),
            Err(Problem { text, figures }) => (None, figures, Some(text)),
        };
        let line = json!({
            "section": self.section,
            "ok": problem.is_none(),
            "seconds": self.seconds,
            "text": text,
            "figures": figures,
            "problem": problem,
        });
        line.to_string()
    }
}

/// The sections that are not right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Those that failed.
    pub failed: Vec<String>,
    /// Those that have no sense after a failure, so they were not checked.
    pub unchecked: Vec<String>,
}

/// The sections so far.
pub(super) struct Report<'a> {
    only: &'a [Section],
    on_result: Box<dyn FnMut(&SectionResult) + 'a>,
    summary: Summary,
}

impl<'a> Report<'a> {
    /// A report of these sections, or of all for none.
    pub(super) fn new(only: &'a [Section], on_result: impl FnMut(&SectionResult) + 'a) -> Self {
        Report { only, on_result: Box::new(on_result), summary: Summary::default() }
    }

    /// Whether a section is to be checked.
    pub(super) fn wants(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }

    /// Checks a section, if it is wanted, and hands its result on.
    pub(super) async fn section(
        &mut self,
        section: Section,
        check: impl Future<Output = Result<Findings, Problem>>,
    ) {
        if !self.wants(section) {
            return;
        }
        let begin = Instant::now();
        let result = within(LIMIT, section.name(), check).await;
        self.add(section.name(), begin.elapsed(), result);
    }

    /// As [`Report::section`], for a part of a section.
    pub(super) async fn part(
        &mut self,
        section: Section,
        part: &str,
        check: impl Future<Output = Result<Findings, Problem>>,
    ) {
        if !self.wants(section) {
            return;
        }
        let name = format!("{}.{part}", section.name());
        let begin = Instant::now();
        let result = within(LIMIT, &name, check).await;
        self.add(name, begin.elapsed(), result);
    }

    /// Hands on the result of a part of a section, or of one that was checked elsewhere.
    pub(super) fn add(
        &mut self,
        section: impl Into<String>,
        time: Duration,
        result: Result<Findings, Problem>,
    ) {
        let section = section.into();
        if result.is_err() {
            self.summary.failed.push(section.clone());
        }
        (self.on_result)(&SectionResult { section, seconds: time.as_secs_f64(), result });
    }

    /// The summary, if all sections were checked.
    pub(super) fn ended(self) -> Summary {
        self.summary
    }

    /// The summary, if no section after that of the device has a sense.
    pub(super) fn stopped(self) -> Summary {
        let later = Section::NAMES.iter().filter(|(_, section)| *section != Section::Device);
        let unchecked = later.filter(|(_, section)| self.wants(*section));
        let unchecked = unchecked.map(|(name, _)| name.to_string()).collect();
        Summary { unchecked, ..self.summary }
    }
}

/// Ends a section that never ends: a device or a driver that hangs reports no error.
async fn within(
    limit: Duration,
    name: &str,
    check: impl Future<Output = Result<Findings, Problem>>,
) -> Result<Findings, Problem> {
    tokio::time::timeout(limit, check).await.unwrap_or_else(|_| {
        Err(Problem::new(format!(
            "{name} has not ended after {} s, so the device or its driver hangs, or the machine is \
             too slow for this preset; look for `Xid` in dmesg, or take --preset tiny",
            limit.as_secs()
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(result: Result<Findings, Problem>) -> (String, Json) {
        let result = SectionResult { section: "cuts".into(), seconds: 0.5, result };
        (result.text(), serde_json::from_str(&result.json()).unwrap())
    }

    #[test]
    fn a_section_has_a_line_for_people_and_one_for_programs() {
        let (text, json) = lines(Ok(Findings::default().figure("largest", 0).text("equal")));
        assert_eq!(text, "cuts ... ok (0.5 s): equal");
        let expected = json!({"section": "cuts", "ok": true, "seconds": 0.5,
            "text": "equal", "figures": {"largest": 0}, "problem": null});
        assert_eq!(json, expected);
        let (text, json) = lines(Ok(Findings::skipped("one GPU")));
        assert_eq!(text, "cuts ... skipped: one GPU");
        assert_eq!(json["figures"], json!({"skipped": "one GPU"}));
        let problem = Problem::new("not equal").with(Findings::default().figure("largest", 1));
        let (text, json) = lines(Err(problem));
        assert_eq!(text, "cuts ... failed (0.5 s): not equal");
        assert_eq!((&json["ok"], &json["figures"]), (&json!(false), &json!({"largest": 1})));
    }

    #[test]
    fn a_result_of_the_worker_program_keeps_its_text() {
        let text = |figures: Json| {
            let Json::Object(figures) = figures else { panic!() };
            lines(Ok(Findings::of_worker("a CPU".into(), figures))).0
        };
        assert_eq!(text(json!({"wrong": 0})), "cuts ... ok (0.5 s): a CPU");
        assert_eq!(text(json!({"skipped": "a CPU"})), "cuts ... skipped: a CPU");
    }

    #[tokio::test]
    async fn only_the_wanted_sections_are_checked() {
        let mut seen = Vec::new();
        let mut report =
            Report::new(&[Section::Resume], |result: &SectionResult| seen.push(result.text()));
        report.section(Section::Cuts, async { Ok(Findings::default()) }).await;
        report.section(Section::Resume, async { Err(Problem::new("late")) }).await;
        assert_eq!(report.ended().failed, ["resume"]);
        assert_eq!(seen, ["resume ... failed (0.0 s): late"]);
        let report = Report::new(&[Section::Device, Section::Speed], |_: &SectionResult| {});
        assert_eq!(report.stopped().unchecked, ["speed"]);
    }

    #[tokio::test]
    async fn a_section_that_hangs_ends_with_its_name() {
        let never = std::future::pending();
        let problem = within(Duration::from_millis(1), "cuts", never).await.unwrap_err();
        assert!(problem.text.starts_with("cuts has not ended after 0 s"), "{}", problem.text);
    }
}

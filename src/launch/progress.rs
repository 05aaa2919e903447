//! How far a job is, for whoever watches the launcher's standard error.
//!
//! On a terminal it is one line, drawn anew and out of the way of what the processes print. Elsewhere it is a line from time to
//! time, once a job takes long.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::phase::Watched;
use crate::rendezvous::ProcessList;

/// How often the line on a terminal is drawn.
const FRAME: Duration = Duration::from_millis(100);
/// Jobs that are over before this show no line.
const QUIET: Duration = Duration::from_millis(500);
/// How often it is looked elsewhere how far the job is.
const LOOK: Duration = Duration::from_secs(1);
/// The time between two lines there.
const PAUSE: Duration = Duration::from_secs(30);
/// What the rate of steps is taken over.
const PACE: Duration = Duration::from_secs(3);

/// How far one process is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Place {
    has_come: bool,
    phase: String,
    step: u64,
    steps: Option<u64>,
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq)]
enum State {
    /// In words.
    Busy(String),
    /// All processes have begun this step.
    Steps { step: u64, of: Option<u64> },
}

/// The line for people who watch; none if nobody does.
pub fn line() -> Option<ProgressBar> {
    io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(style("{spinner} {msg}"));
        bar
    })
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

/// Tells how far a job is, until it is dropped.
pub struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Tells it on this line, or on lines of its own; `look` says where all processes are.
    pub fn start(look: impl Fn() -> Vec<Place> + Send + 'static, line: Option<ProgressBar>) -> io::Result<Progress> {
        let (stop, stopped) = channel::<()>();
        let pause = if line.is_some() { FRAME } else { LOOK };
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(move || {
            let (started, mut told) = (Instant::now(), Instant::now());
            let mut pace = VecDeque::new();
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let state = State::of(&look());
                let now = Instant::now();
                let rate = rate(&mut pace, now, &state, PACE);
                match &line {
                    Some(_) if started.elapsed() < QUIET || state.text(rate).is_empty() => {}
                    // Results are next.
                    Some(_) if state.is_last() => break,
                    Some(line) => {
                        if line.is_hidden() {
                            line.set_draw_target(ProgressDrawTarget::stderr());
                        }
                        state.draw(line, rate);
                    }
                    None if now.duration_since(told) < PAUSE => {}
                    None => {
                        told = now;
                        let text = state.text(rate);
                        if !text.is_empty() {
                            tracing::info!("{text}");
                        }
                    }
                }
            }
            line.iter().for_each(ProgressBar::finish_and_clear);
        })?;
        Ok(Progress { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Steps per second over the last time, which `pace` remembers.
fn rate(pace: &mut VecDeque<(Instant, u64)>, now: Instant, state: &State, over: Duration) -> f64 {
    let State::Steps { step, .. } = *state else { return 0.0 };
    if pace.back().is_none_or(|(_, last)| *last != step) {
        pace.push_back((now, step));
    }
    while pace.len() > 2 && now.duration_since(pace[1].0) >= over {
        pace.pop_front();
    }
    let ((first, before), (last, _)) = (pace[0], pace[pace.len() - 1]);
    // Word of other hosts comes once a second; who has made no step for long is slow.
    let end = if now.duration_since(last) < over { last } else { now };
    let seconds = end.duration_since(first).as_secs_f64();
    if seconds > 0.0 { step.saturating_sub(before) as f64 / seconds } else { 0.0 }
}

impl Place {
    pub fn of(process: &Watched) -> Place {
        let now = process.now();
        Place { has_come: process.has_come(), phase: now.text, step: now.step, steps: process.steps() }
    }
}

impl State {
    fn of(places: &[Place]) -> State {
        let missing: Vec<(u32, &str)> =
            (0..).zip(places).filter(|(_, place)| !place.has_come).map(|(index, _)| (index, "")).collect();
        if !missing.is_empty() && places.len() > 1 {
            let come = places.len() - missing.len();
            return State::Busy(match come {
                0 => "joining".to_owned(),
                _ => format!("joining: {come} of {}, missing {}", places.len(), ProcessList(&missing)),
            });
        }
        let step = places.iter().map(|place| place.step).min().unwrap_or(0);
        let of = places.iter().find_map(|place| place.steps);
        let first_phase = || places.first().map(|place| place.phase.clone()).unwrap_or_default();
        if step == 0 { State::Busy(first_phase()) } else { State::Steps { step, of } }
    }

    /// In one line, with what is left at this many steps per second.
    fn text(&self, rate: f64) -> String {
        match self {
            State::Busy(text) => text.clone(),
            State::Steps { step, of: Some(of) } => format!("step {step} of {of}{}", pace_text(rate, of - step.min(of))),
            State::Steps { step, of: None } => format!("step {step}{}", pace_text(rate, 0)),
        }
    }

    fn is_last(&self) -> bool {
        matches!(self, State::Steps { step, of: Some(of) } if step >= of)
    }

    fn draw(&self, line: &ProgressBar, rate: f64) {
        match self {
            State::Busy(text) => line.set_message(text.clone()),
            State::Steps { step, of } => {
                if let Some(of) = of.filter(|of| line.length() != Some(*of)) {
                    line.set_length(of);
                    line.set_style(style("{spinner} [{bar:30}] {msg}"));
                }
                line.set_position(*step);
                line.set_message(self.text(rate));
            }
        }
        line.tick();
    }
}

/// `, 35.2/s, 25 s left`
fn pace_text(rate: f64, left: u64) -> String {
    if rate <= 0.0 {
        return String::new();
    }
    let rate_text = if rate < 9.95 { format!("{rate:.2}") } else { format!("{rate:.0}") };
    match left {
        0 => format!(", {rate_text}/s"),
        left => {
            let seconds = (left as f64 / rate).ceil() as u64;
            let time = match seconds {
                0..120 => format!("{seconds} s"),
                120..7200 => format!("{} min", seconds.div_ceil(60)),
                _ => format!("{} h", seconds.div_ceil(3600)),
            };
            format!(", {rate_text}/s, {time} left")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(has_come: bool, phase: &str, step: u64, steps: Option<u64>) -> Place {
        Place { has_come, phase: phase.to_owned(), step, steps }
    }

    #[test]
    fn who_is_missing_then_what_is_done_then_steps() {
        let mut places = vec![Place::default(); 3];
        assert_eq!(State::of(&places).text(0.0), "joining");
        (places[0].has_come, places[2].has_come) = (true, true);
        assert_eq!(State::of(&places).text(0.0), "joining: 2 of 3, missing process 1");
        let compiling = vec![place(true, "compiling 'main'", 0, None); 3];
        assert_eq!(State::of(&compiling).text(0.0), "compiling 'main'");
        let steps = [place(true, "running", 12, Some(1000)), place(true, "running", 10, Some(1000))];
        assert_eq!(State::of(&steps), State::Steps { step: 10, of: Some(1000) });
        assert_eq!(State::of(&steps).text(3.3), "step 10 of 1000, 3.30/s, 5 min left");
        assert_eq!(State::of(&steps).text(0.0), "step 10 of 1000");
        assert_eq!(State::of(&[place(false, "running", 7, None)]).text(120.0), "step 7, 120/s");
    }

    #[test]
    fn the_rate_is_that_of_the_last_time() {
        let (start, mut pace) = (Instant::now(), VecDeque::new());
        let at = |second: u64, step| (start + Duration::from_secs(second), State::Steps { step, of: None });
        let rates = [at(0, 5), at(1, 15), at(2, 25), at(3, 125), at(4, 225), at(5, 325)]
            .map(|(now, state)| rate(&mut pace, now, &state, Duration::from_secs(2)));
        assert_eq!(rates, [0.0, 10.0, 10.0, 55.0, 100.0, 100.0]);
        assert_eq!(rate(&mut pace, start, &State::Busy(String::new()), PACE), 0.0);
    }
}

//! RDMA programs beside TCP: perftest as it is packaged. Higher is better.

use isthmus_bench::demo::{PERFTESTS, PerftestTime, Point, Session, Wait};

use super::SIZE_SMALL;
use super::table::{distinct, name, round_trips, shown};
use crate::capability::missing_for_rdma;
use crate::output::{Align, Table};

const TITLE: &str = "perftest over verbs: ib_write_lat and ib_send_lat; in each row both sides poll";

/// Measures, or says why not.
pub(super) fn measure(session: &Session, step: impl FnMut(&str)) -> Vec<PerftestTime> {
    let Some(missing) = missing_for_rdma() else { return session.perftest(step) };
    let why = Some(format!("not installed: {missing}"));
    PERFTESTS.map(|program| PerftestTime { program, half_rtt_us: None, why: why.clone(), failed: false }).into()
}

/// Returns the table with TCP of the same run, or the reasons why there is none.
pub(super) fn text(times: &[PerftestTime], points: &[Point]) -> String {
    let whys = distinct(times.iter().filter_map(|time| time.why.as_deref()));
    if times.iter().all(|time| time.half_rtt_us.is_none()) {
        return format!("RDMA programs: not measured: {}\n\n", whys.join("; "));
    }
    let mut table = Table::new(&[("", Align::Left), ("8 B round trips, 1000/s", Align::Right)]);
    for time in times {
        table.row(vec![time.program.to_owned(), shown(time.half_rtt_us.and_then(round_trips))]);
    }
    table.row(vec![name(super::PathName::Tcp).to_owned(), shown(tcp(points).and_then(round_trips))]);
    let missing: String = whys.iter().map(|why| format!("perftest: {why}\n")).collect();
    format!("{TITLE}\n{}{missing}\n", table.text())
}

/// Returns half a round trip of TCP in microseconds, both sides polling.
pub(super) fn tcp(points: &[Point]) -> Option<f64> {
    let is_wanted =
        |point: &&Point| point.path == super::PathName::Tcp && point.wait == Wait::Poll && point.size == SIZE_SMALL;
    points.iter().find(is_wanted)?.half_rtt_us
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(program: &'static str, outcome: Result<f64, &str>) -> PerftestTime {
        let (half_rtt_us, why) = (outcome.ok(), outcome.err().map(str::to_owned));
        PerftestTime { program, half_rtt_us, why, failed: false }
    }

    #[test]
    fn shows_both_programs_or_the_reason() {
        let shown = text(&[time("ib_write_lat", Ok(0.2)), time("ib_send_lat", Err("it ended"))], &[]);
        let rows: Vec<Vec<&str>> = shown.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[..3], [["ib_write_lat", "2500"], ["ib_send_lat", "-"], ["TCP", "-"]]);
        assert!(shown.ends_with("\nperftest: it ended\n\n"), "{shown}");
        let why = |program| time(program, Err("not installed: perftest (package perftest)"));
        let expected = "RDMA programs: not measured: not installed: perftest (package perftest)\n\n";
        assert_eq!(text(&PERFTESTS.map(why), &[]), expected);
    }
}

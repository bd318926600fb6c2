use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::bail;

use super::*;
use crate::cpu_placement::HostPlacement;
use crate::pin::Placement;

/// Gives its values in turn, and writes down that it was asked.
struct ReportedValue {
    name: &'static str,
    values: RefCell<Vec<Result<Reading, &'static str>>>,
    order: Rc<RefCell<String>>,
}

impl Case for ReportedValue {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn run(&self, _: &Bench) -> Result<Reading> {
        self.order.borrow_mut().push_str(self.name);
        match self.values.borrow_mut().remove(0) {
            Ok(reading) => Ok(reading),
            Err(error) => bail!(error),
        }
    }
}

fn bench(runs: usize) -> Bench {
    let placement = Placement::of(&[0, 1]);
    Bench {
        host_cpus: HostPlacement::Together.host_cpus(&placement).expect("two are enough"),
        placement,
        budget: Duration::from_millis(1),
        runs,
        quick: true,
        program: "unused".into(),
        environment: Vec::new(),
    }
}

#[test]
fn runs_are_interleaved_and_failures_not_repeated() {
    let order = Rc::new(RefCell::new(String::new()));
    let told = |name, values: Vec<Result<Reading, &'static str>>| ReportedValue {
        name,
        values: RefCell::new(values),
        order: order.clone(),
    };
    let a = told("A", vec![Ok(Reading::value(1.0)), Ok(Reading::value(5.0)), Ok(Reading::value(2.0))]);
    let b = told("B", vec![Err("broken")]);
    let c = told("C", vec![Ok(Reading::Unavailable("not installed".to_owned()))]);
    let samples = interleave(&[&a, &b, &c], &bench(3), |_, _| {});
    assert_eq!(*order.borrow(), "ABCAA");
    assert_eq!((samples[0].median(), samples[0].spread()), (Some(2.0), Some(2.0)));
    assert_eq!(samples[1].no_value, Some(NoValue::Failed("broken".to_owned())));
    assert_eq!(samples[2].no_value, Some(NoValue::Unavailable("not installed".to_owned())));
    assert_eq!(samples[2].median(), None);
}

#[test]
fn case_names_contain_path_quantity_size_and_wait() {
    assert_eq!(LinkCase::half_rtt(Path::Tcp, Wait::Sleep, 8).name(), "tcp.half_rtt.8b.sleep");
    assert_eq!(LinkCase::bandwidth(Path::Cma, Wait::Poll, 1 << 20, Buffers::Cold).name(), "cma.bandwidth.1m.cold.poll");
    let one = LinkCase::half_rtt(Path::Unix, Wait::Sleep, 8).on_one_cpu();
    assert_eq!(one.name(), "unix.half_rtt.8b.sleep.one_cpu");
    assert_eq!(LinkCase::rate(Path::Pipe, Wait::Poll, 4096).isolated().name(), "pipe.rate.4k.poll.isolated");
    assert_eq!(size_name(1000), "1000b");
}

use serde_json::Value;

use super::*;
use crate::target::Versus;

fn samples(values: &[f64]) -> Samples {
    Samples { values: values.to_vec(), ..Samples::default() }
}

#[test]
fn a_figure_has_the_promised_fields() {
    let figure = Figure::new("local.x".to_owned(), Unit::Microseconds, &samples(&[1.0, 2.0, 3.0]))
        .with_baseline("tcp".to_owned(), &samples(&[8.0, 8.0, 8.0]))
        .with_floor("floor.x".to_owned(), &samples(&[1.6]))
        .with_other("pipe".to_owned(), &samples(&[4.0]));
    let figure = Figure { target: Some(Target::at_most(2.0, Versus::Floor)), ..figure };
    let json: Value = serde_json::to_value(&figure).expect("serialises");
    for (field, expected) in [("value", 2.0), ("baseline_value", 8.0), ("ratio", 0.25), ("runs", 3.0), ("spread", 1.0)]
    {
        assert_eq!(json[field].as_f64(), Some(expected), "{field}");
    }
    assert_eq!(
        (json["name"].as_str(), json["unit"].as_str(), json["baseline"].as_str()),
        (Some("local.x"), Some("us"), Some("tcp"))
    );
    assert_eq!(json["others"][0]["ratio"].as_f64(), Some(0.5));
    let floor = (json["floor"].as_str(), json["floor_value"].as_f64(), json["floor_ratio"].as_f64());
    assert_eq!(floor, (Some("floor.x"), Some(1.6), Some(1.25)));
    assert_eq!((&json["target"]["vs"], &json["target"]["value"]), (&"floor".into(), &2.0.into()));
    assert!(json.get("why").is_none());
    assert!(figures_table(&[figure]).ends_with("target of local.x: <= 2 x floor"));
}

#[test]
fn the_best_peer_is_the_baseline() {
    let (slow, fast) = (samples(&[8.0]), samples(&[4.0]));
    let absent = Samples { no_value: Some(NoValue::Unavailable("not installed".to_owned())), ..Samples::default() };
    let peers = || [("ucx".to_owned(), &absent), ("slow".to_owned(), &slow), ("fast".to_owned(), &fast)].into_iter();
    let figure = |unit| Figure::new("x".to_owned(), unit, &samples(&[2.0])).with_peers(unit, peers());
    let time = figure(Unit::Microseconds);
    assert_eq!((time.baseline.as_deref(), time.ratio), (Some("fast"), Some(0.5)));
    let others: Vec<_> = time.others.iter().map(|other| other.baseline.as_str()).collect();
    assert_eq!(others, ["ucx", "slow"]);
    let rate = figure(Unit::GigabytesPerSecond);
    assert_eq!((rate.baseline.as_deref(), rate.ratio), (Some("slow"), Some(0.25)));
    let unit = Unit::Microseconds;
    let none = Figure::new("x".to_owned(), unit, &samples(&[2.0])).with_peers(unit, peers().take(1));
    assert_eq!((none.baseline.as_deref(), none.baseline_why.as_deref()), (Some("ucx"), Some("not installed")));
}

#[test]
fn a_run_begins_with_its_command_and_machine() {
    let machine = Machine::for_guests("two".to_owned());
    let json: Value = serde_json::to_value(RunHeader::of(&machine)).expect("serialises");
    assert!(json["command"].is_string() && json["machine"]["kernel"].is_string());
    assert!(json["date"].as_str().is_some_and(|date| date.ends_with(" UTC")));
}

#[test]
fn unmeasured_value_is_null_with_a_reason() {
    let absent = Samples { no_value: Some(NoValue::Unavailable("not installed".to_owned())), ..Samples::default() };
    let figure = Figure::new("local.x".to_owned(), Unit::Microseconds, &samples(&[1.0]))
        .with_baseline("ucx".to_owned(), &absent);
    let json: Value = serde_json::to_value(&figure).expect("serialises");
    assert!(json["baseline_value"].is_null() && json["ratio"].is_null());
    assert_eq!(json["baseline_why"].as_str(), Some("not installed"));
    assert!(figures_table(&[figure]).ends_with("ucx: not installed"));
}

#[test]
fn numbers_keep_three_digits() {
    assert_eq!(number(Some(0.063_12)), "0.0631");
    assert_eq!(number(Some(12.345)), "12.3");
    assert_eq!(number(Some(12_345.0)), "12345");
    assert_eq!(number(Some(0.0)), "0");
    assert_eq!(number(None), "-");
}

#[test]
fn columns_are_as_wide_as_their_cells() {
    let rows = vec![vec!["a".to_owned(), "1000".to_owned()], vec!["long".to_owned(), "1".to_owned()]];
    assert_eq!(table(&["n", "v"], &rows), "n        v\na     1000\nlong     1");
}

#[test]
fn a_ratio_needs_both_sides() {
    assert_eq!(ratio(Some(1.0), Some(4.0)), Some(0.25));
    assert_eq!(ratio(None, Some(4.0)), None);
    assert_eq!(ratio(Some(1.0), Some(0.0)), None);
}

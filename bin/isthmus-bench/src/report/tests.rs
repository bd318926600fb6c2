use serde_json::Value;

use super::*;
use crate::cpu_placement::HostPlacement;
use crate::pin::Placement;

fn machine() -> Machine {
    let placement = Placement::of(&[0, 1]);
    let host_cpus = HostPlacement::Together.host_cpus(&placement).expect("two are enough");
    Machine::look(&placement, &host_cpus)
}

fn samples(values: &[f64]) -> Samples {
    Samples { values: values.to_vec(), ..Samples::default() }
}

#[test]
fn a_figure_has_the_promised_fields() {
    let machine = machine();
    let figure = Figure::new("local.x".to_owned(), Unit::Microseconds, &samples(&[1.0, 2.0, 3.0]), &machine)
        .with_baseline("tcp".to_owned(), &samples(&[8.0, 8.0, 8.0]))
        .with_other("pipe".to_owned(), &samples(&[4.0]));
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
    assert!(json["machine"]["kernel"].is_string() && json.get("why").is_none());
}

#[test]
fn unmeasured_value_is_null_with_a_reason() {
    let machine = machine();
    let absent = Samples { no_value: Some(NoValue::Unavailable("not installed".to_owned())), ..Samples::default() };
    let figure = Figure::new("local.x".to_owned(), Unit::Microseconds, &samples(&[1.0]), &machine)
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

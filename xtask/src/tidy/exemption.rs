//! Excuses: `// tidy(rule): reason` on a line, or in the comment above it.

use crate::tree::Tree;

const MARK: &str = "tidy(";

/// Returns true if line `line` (from 1) of a file is excused from a rule, with a reason.
pub(super) fn is_exempt(lines: &[&str], line: usize, rule: &str) -> bool {
    let at = |line: usize| line.checked_sub(1).and_then(|at| lines.get(at)).copied().unwrap_or("");
    if exempts(at(line), rule) {
        return true;
    }
    let mut above = line.saturating_sub(1);
    while is_comment(at(above)) {
        if exempts(at(above), rule) {
            return true;
        }
        above -= 1;
    }
    false
}

/// Returns the number of excuses in a tree.
pub(super) fn count(tree: &Tree) -> usize {
    let lines =
        tree.texts.iter().filter(|file| !file.path.starts_with("xtask/src/tidy")).flat_map(|file| file.text.lines());
    lines.filter(|line| line.split_once(MARK).is_some_and(|(_, rest)| rest.contains("):"))).count()
}

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || (line.starts_with('#') && !line.starts_with("#[") && !line.starts_with("#!"))
}

fn exempts(line: &str, rule: &str) -> bool {
    let Some((before, after)) = line.split_once(MARK) else { return false };
    let reason = after.strip_prefix(rule).and_then(|rest| rest.strip_prefix("):"));
    (before.contains("//") || before.contains('#')) && reason.is_some_and(|reason| reason.trim().len() > 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exemption_needs_its_rule_and_a_reason() {
        assert!(is_exempt(&["a(); // tidy(sleep): no event to wait for"], 1, "sleep"));
        assert!(is_exempt(&["// tidy(sleep): no event", "// to wait for", "a();"], 3, "sleep"));
        assert!(!is_exempt(&["// tidy(sleep): no event", "b();", "a();"], 3, "sleep"));
        assert!(!is_exempt(&["a(); // tidy(sleep):"], 1, "sleep"));
        assert!(!is_exempt(&["a(); // tidy(unwrap): no event to wait for"], 1, "sleep"));
    }
}

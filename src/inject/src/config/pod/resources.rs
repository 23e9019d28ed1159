//! Requests and limits of containers.

use json_patch::jsonptr::Token;
use serde_json::Value;

use etcd_guard_core::{config::diagnostic::Validator, objects::quantity::Quantity};

/// Prefix of the resources of huge pages.
const HUGE_PAGES: &str = "hugepages-";

/// The domain of native resources with a prefix.
const NATIVE_DOMAIN: &str = "kubernetes.io/";

/// The resources of claims, which containers do not have.
const STORAGE: &str = "storage";

/// Checks the relations between requests and limits. The syntax of quantities and names is checked by the type check.
pub(super) fn check_resources(resources: &Value, validator: &mut Validator<'_>) {
    let lists = ["limits", "requests"];
    let amounts = |list: &str| {
        let amounts = resources.get(list).and_then(Value::as_object).into_iter().flatten();
        amounts.filter_map(|(name, amount)| Some((name.as_str(), quantity(amount)?))).collect::<Vec<_>>()
    };
    let [limits, requests] = lists.map(amounts);
    for (list, amounts) in lists.into_iter().zip([&limits, &requests]) {
        let mut validator = validator.at(list);
        for (name, amount) in amounts {
            let mut validator = validator.at(Token::new(*name).into_owned());
            if *name == STORAGE {
                validator.report("is not a resource of containers: see ephemeral-storage");
            } else if is_extended(name) && Quantity::from_units(amount.units()) != *amount {
                validator.report(format!("{amount} is not a whole number of {name}"));
            }
        }
    }
    for (name, request) in &requests {
        let limit = limits.iter().find(|(limited, _)| limited == name).map(|(_, limit)| *limit);
        let mut validator = validator.at("requests");
        let mut validator = validator.at(Token::new(*name).into_owned());
        match limit {
            Some(limit) if *request > limit => {
                validator.report(format!("{request} is more than the limit of {limit}"));
            }
            Some(limit) if *request != limit && is_extended(name) => {
                validator.report(format!("{request} must be equal to the limit of {limit}"));
            }
            None if is_extended(name) => validator.report("requires a limit of the same amount"),
            _ => {}
        }
    }
    let has = |is_wanted: fn(&str) -> bool| limits.iter().chain(&requests).any(|(name, _)| is_wanted(name));
    if has(|name| name.starts_with(HUGE_PAGES)) && !has(|name| matches!(name, "cpu" | "memory")) {
        validator.report("huge pages require cpu or memory");
    }
}

fn quantity(amount: &Value) -> Option<Quantity> {
    match amount {
        Value::String(text) => Quantity::parse(text),
        Value::Number(number) => Quantity::parse(&number.to_string()),
        _ => None,
    }
}

/// Whether a resource is advertised by a device plugin or by an administrator. Its amounts are whole numbers, and its
/// requests equal its limits.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains(NATIVE_DOMAIN)
}

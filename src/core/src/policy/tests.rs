use super::*;

fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn resolve_with(defaults: &Defaults, floor: &Floor, sources: &[&[(&str, &str)]]) -> ResolvedPolicy {
    let annotations: Vec<_> = sources.iter().map(|pairs| annotations(pairs)).collect();
    let names = ["namespace prod", "StatefulSet etcd", "pod etcd-0"];
    let sources: Vec<_> = annotations
        .iter()
        .zip(names)
        .map(|(annotations, name)| PolicySource { object: name.to_owned(), annotations })
        .collect();
    resolve(defaults, floor, &sources, "2026-01-31T12:00:00Z".parse().unwrap())
}

fn resolve_all(floor: &Floor, sources: &[&[(&str, &str)]]) -> ResolvedPolicy {
    resolve_with(&Defaults::default(), floor, sources)
}

#[test]
fn defaults_are_strict_and_move_leadership_for_programs() {
    let policy = resolve_all(&Floor::default(), &[]).policy;
    assert_eq!((policy.leader, policy.mode, policy.break_glass), (LeaderPolicy::Auto, Mode::Enforce, None));
    assert_eq!((policy.single_member, policy.ephemeral_data), (Permission::Deny, Permission::Deny));
}

#[test]
fn source_nearest_to_the_pod_wins() {
    let sources: &[&[_]] = &[&[(LEADER, "deny"), (MODE, "audit")], &[(LEADER, "transfer")], &[]];
    let policy = resolve_all(&Floor::default(), sources).policy;
    assert_eq!((policy.leader, policy.mode), (LeaderPolicy::Transfer, Mode::Audit));
    let stricter = resolve_all(&Floor::default(), &[&[(LEADER, "transfer")], &[(LEADER, "deny")]]).policy;
    assert_eq!(stricter.leader, LeaderPolicy::Deny);
}

#[test]
fn raises_values_to_the_floor_with_a_warning() {
    let floor = Floor { leader: LeaderPolicy::Deny, mode: Mode::Enforce, ..Floor::default() };
    let sources: &[&[_]] = &[&[(LEADER, "transfer"), (MODE, "audit"), (SINGLE_MEMBER, "allow")]];
    let ResolvedPolicy { policy, warnings, .. } = resolve_all(&floor, sources);
    assert_eq!((policy.leader, policy.mode), (LeaderPolicy::Deny, Mode::Enforce));
    assert_eq!(policy.single_member, Permission::Allow);
    assert_eq!(
        warnings,
        [
            "etcd-guard.io/leader=transfer is below the floor of the configuration: deny applies",
            "etcd-guard.io/mode=audit is below the floor of the configuration: enforce applies"
        ]
    );
}

#[test]
fn floor_raises_the_defaults_that_the_file_does_not_set() {
    let floor = Floor { leader: LeaderPolicy::Deny, min_voters: 3, ..Floor::default() };
    let resolved = resolve_all(&floor, &[]);
    assert_eq!((resolved.policy.leader, resolved.policy.min_voters), (LeaderPolicy::Deny, 3));
    assert_eq!(resolved.warnings, Vec::<String>::new());
    let defaults = Defaults { min_voters: Some(5), ..Defaults::default() };
    assert_eq!(resolve_with(&defaults, &floor, &[]).policy.min_voters, 5);
    let lenient = Floor::default();
    assert_eq!(resolve_all(&lenient, &[]).policy.leader, LeaderPolicy::Auto, "the floor is no default");
}

#[test]
fn floor_orders_transfer_before_auto_before_deny() {
    let names = ["transfer", "auto", "deny"];
    let floors = [LeaderPolicy::Transfer, LeaderPolicy::Auto, LeaderPolicy::Deny];
    for (n, leader) in floors.into_iter().enumerate() {
        for (chosen, name) in names.into_iter().enumerate() {
            let floor = Floor { leader, ..Floor::default() };
            let resolved = resolve_all(&floor, &[&[(LEADER, name)]]);
            assert_eq!(resolved.policy.leader, floors[n.max(chosen)], "floor {leader:?}, annotation {name}");
            assert_eq!(resolved.warnings.len(), usize::from(chosen < n));
        }
    }
    let unknown = resolve_all(&Floor::default(), &[&[(LEADER, "allow")]]).warnings;
    assert_eq!(
        unknown,
        ["etcd-guard.io/leader=\"allow\" has no effect: the values are auto, deny, transfer"]
    );
}

#[test]
fn number_of_voters_is_at_least_the_floor() {
    let voters = |floor: u32, sources: &[&[(&str, &str)]]| {
        let resolved = resolve_all(&Floor { min_voters: floor, ..Floor::default() }, sources);
        (resolved.policy.min_voters, resolved.warnings)
    };
    assert_eq!(voters(0, &[]), (0, Vec::new()));
    assert_eq!(voters(0, &[&[(MIN_VOTERS, "3")], &[(MIN_VOTERS, "5")]]), (5, Vec::new()));
    assert_eq!(
        voters(3, &[&[(MIN_VOTERS, "1")]]),
        (
            3,
            vec![String::from(
                "etcd-guard.io/min-voters=1 is below the floor of the configuration: 3 applies"
            )]
        )
    );
    assert_eq!(
        voters(0, &[&[(MIN_VOTERS, "many")]]),
        (0, vec![String::from("etcd-guard.io/min-voters=\"many\" has no effect: it is not a number")])
    );
    let resolved = resolve_all(&Floor::default(), &[&[(MIN_VOTERS, "3")]]);
    assert!(resolved.settings.iter().any(|setting| setting.name == MIN_VOTERS && setting.value == "3"));
}

#[test]
fn accepts_values_that_are_stricter_than_the_floor() {
    let floor = Floor { leader: LeaderPolicy::Transfer, ..Floor::default() };
    let resolved = resolve_all(&floor, &[&[(LEADER, "deny")]]);
    assert_eq!((resolved.policy.leader, resolved.warnings), (LeaderPolicy::Deny, Vec::new()));
}

#[test]
fn annotations_replace_defaults() {
    let defaults =
        Defaults { leader: Some(LeaderPolicy::Transfer), mode: Mode::Audit, ..Defaults::default() };
    let policy = resolve_with(&defaults, &Floor::default(), &[&[(MODE, "enforce")]]).policy;
    assert_eq!((policy.leader, policy.mode), (LeaderPolicy::Transfer, Mode::Enforce));
}

#[test]
fn warns_of_an_exclusion_that_the_floor_forbids() {
    let resolved = resolve_all(&Floor::default(), &[&[(MEMBER, MEMBER_OVERRULED)]]);
    assert!(
        resolved.warnings[0].contains("member=false is below the floor of the configuration"),
        "{:?}",
        resolved.warnings
    );
}

#[test]
fn ignores_a_break_glass_that_the_floor_forbids() {
    let floor = Floor { break_glass: Permission::Deny, ..Floor::default() };
    let resolved = resolve_all(&floor, &[&[(ALLOW_UNTIL, "2026-02-01T12:00:00Z"), (ALLOW_REASON, "fire")]]);
    assert_eq!(resolved.policy.break_glass, None);
    assert_eq!(resolved.settings.len(), 4, "{:?}", resolved.settings);
    assert!(resolved.warnings[0].contains("below the floor"), "{:?}", resolved.warnings);
}

#[test]
fn warns_of_an_invalid_value_and_ignores_it() {
    let resolved = resolve_all(&Floor::default(), &[&[(LEADER, "maybe")]]);
    assert_eq!(resolved.policy, Policy::default());
    assert_eq!(
        resolved.warnings,
        ["etcd-guard.io/leader=\"maybe\" has no effect: the values are auto, deny, transfer"]
    );
}

#[test]
fn break_glass_requires_a_reason_and_an_end_within_a_day() {
    let warning = |pairs: &[(&str, &str)]| {
        let resolved = resolve_all(&Floor::default(), &[pairs]);
        assert_eq!(resolved.policy.break_glass, None);
        resolved.warnings.join("; ")
    };
    assert!(warning(&[(ALLOW_UNTIL, "2026-01-31T13:00:00Z")]).contains("no effect without"));
    assert!(
        warning(&[(ALLOW_UNTIL, "2026-01-31T13:00:00Z"), (ALLOW_REASON, " ")]).contains("no effect without")
    );
    assert!(
        warning(&[(ALLOW_UNTIL, "2026-01-31T13:59:59+02:00"), (ALLOW_REASON, "x")]).contains("in the past")
    );
    assert!(warning(&[(ALLOW_UNTIL, "2026-01-31T11:59:59Z"), (ALLOW_REASON, "x")]).contains("in the past"));
    assert!(
        warning(&[(ALLOW_UNTIL, "2026-02-01T12:00:01Z"), (ALLOW_REASON, "x")]).contains("more than 24 hours")
    );
    assert!(warning(&[(ALLOW_UNTIL, "tomorrow"), (ALLOW_REASON, "x")]).contains("is not a time"));
    let too_long = warning(&[(ALLOW_UNTIL, "2026-01-31T13:00:00Z"), (ALLOW_REASON, TOO_LONG)]);
    assert!(too_long.contains("allow-delete-reason is (longer than 1024 bytes)"), "{too_long}");
    let good =
        resolve_all(&Floor::default(), &[&[(ALLOW_UNTIL, "2026-02-01T12:00:00Z"), (ALLOW_REASON, "fire")]]);
    assert_eq!(good.policy.break_glass.as_deref(), Some("fire (until 2026-02-01T12:00:00Z)"));
    assert_eq!(good.settings.last().map(|setting| setting.name.as_str()), Some(ALLOW_UNTIL));
}

#[test]
fn the_nearest_valid_break_glass_wins() {
    let on_namespace: &[_] = &[(ALLOW_UNTIL, "2026-01-31T13:00:00Z"), (ALLOW_REASON, "upgrade")];
    let on_pod: &[_] = &[(ALLOW_UNTIL, "2026-01-31T11:00:00Z"), (ALLOW_REASON, "expired")];
    let resolved = resolve_all(&Floor::default(), &[on_namespace, &[], on_pod]);
    assert_eq!(resolved.policy.break_glass.as_deref(), Some("upgrade (until 2026-01-31T13:00:00Z)"));
    assert_eq!(resolved.settings.last().map(|setting| setting.from.as_str()), Some("namespace prod"));
    assert_eq!(resolved.warnings.len(), 1, "{:?}", resolved.warnings);
}

#[test]
fn settings_name_the_source_of_each_value() {
    let floor = Floor { leader: LeaderPolicy::Deny, ..Floor::default() };
    let resolved = resolve_all(&floor, &[&[(LEADER, "transfer")], &[], &[(MODE, "audit")]]);
    let settings: Vec<_> =
        resolved.settings.iter().map(|setting| (setting.value.as_str(), setting.from.as_str())).collect();
    assert_eq!(
        settings,
        [
            ("deny", "floor of the configuration"),
            ("deny", "configuration"),
            ("deny", "configuration"),
            ("audit", "pod etcd-0"),
        ]
    );
    assert_eq!((resolved.policy.leader, resolved.policy.mode), (LeaderPolicy::Deny, Mode::Audit));
}

use super::*;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn decide(text: &str, role: Role, program: &str, address: &str) -> (Family, Option<usize>) {
    let parsed = Rules::parse(text);
    assert_eq!(parsed.error, None);
    let decision = parsed.rules.decide(role, program, at(address));
    (decision.family, decision.line)
}

#[test]
fn the_first_rule_that_matches_decides() {
    let text = "\
# web
use tcp server nginx *:443
use\tboth   listen nginx 10.0.0.0/8 : 80 - 90
use sdp client redis-* 127.0.0.1:6379
use tcp connect * *:*
";
    let cases = [
        (Role::Server, "nginx", "1.2.3.4:443", Family::Tcp, Some(2)),
        (Role::Server, "nginx", "10.9.8.7:90", Family::Both, Some(3)),
        (Role::Server, "nginx", "10.9.8.7:91", Family::Both, None),
        (Role::Server, "nginx", "11.0.0.0:80", Family::Both, None),
        (Role::Client, "redis-cli", "127.0.0.1:6379", Family::Sdp, Some(4)),
        (Role::Client, "redis", "127.0.0.1:6379", Family::Tcp, Some(5)),
        (Role::Client, "redis-cli", "[::ffff:127.0.0.1]:6379", Family::Sdp, Some(4)),
    ];
    for (role, program, address, family, line) in cases {
        assert_eq!(decide(text, role, program, address), (family, line), "{program} {address}");
    }
}

#[test]
fn no_rules_at_all_mean_sdp_and_no_match_means_both() {
    assert_eq!(decide("# nothing\n\nlog min-level 7\n", Role::Client, "x", "1.1.1.1:1"), (Family::Sdp, None));
    // Rules for servers are rules, also for clients.
    assert_eq!(decide("use tcp server x *:*\n", Role::Client, "x", "1.1.1.1:1"), (Family::Both, None));
}

#[test]
fn a_socket_that_listens_everywhere_may_get_what_any_rule_says() {
    let rules =
        Rules::parse("use sdp server x 10.0.0.1:80\nuse both server x 10.0.0.2:81\nuse tcp server * *:*\n").rules;
    let of = |program, address| {
        let listening = rules.of_listener(program, at(address));
        (listening.may_move, listening.may_refuse)
    };
    assert_eq!(of("x", "10.0.0.1:80"), (true, true));
    assert_eq!(of("x", "0.0.0.0:80"), (true, true));
    assert_eq!(of("x", "[::]:81"), (true, false));
    assert_eq!(of("x", "10.0.0.2:81"), (true, false));
    assert_eq!(of("x", "10.0.0.2:80"), (false, false));
    assert_eq!((of("x", "0.0.0.0:82"), of("y", "0.0.0.0:80")), ((false, false), (false, false)));
    let none = Rules::default().of_listener("x", at("1.1.1.1:1"));
    assert!(none.may_move && none.may_refuse);
}

#[test]
fn masks_and_addresses_of_ipv6_work_and_are_warned_of() {
    let parsed = Rules::parse("use tcp client * 192.168.1.5/24:*\nuse tcp client * [fe80::1]/64:22\n");
    let lines: Vec<_> = parsed.warnings.iter().map(|warning| (warning.line, warning.column)).collect();
    assert_eq!(lines, [(1, 18), (2, 19), (2, 19)]);
    assert!(parsed.warnings[0].to_string().contains("192.168.1.0/24"), "{}", parsed.warnings[0]);
    let decide = |address| parsed.rules.decide(Role::Client, "x", at(address)).line;
    assert_eq!(decide("192.168.1.77:1"), Some(1));
    assert_eq!(decide("192.168.2.5:1"), None);
    assert_eq!(decide("[fe80::2]:22"), Some(2));
    assert_eq!((decide("[fe80:0:0:1::1]:22"), decide("[fe80::2]:23")), (None, None));
    let any = Rules::parse("use tcp client * 0.0.0.0/0:*\n").rules;
    assert_eq!(any.decide(Role::Client, "x", at("8.8.8.8:1")).line, Some(1));
    assert_eq!(any.decide(Role::Client, "x", at("[::2]:1")).line, None);
}

#[test]
fn logs_are_set() {
    let parsed = Rules::parse("log destination file sdp.log min-level 3\n");
    assert_eq!(parsed.rules.log, Log { destination: Destination::File("sdp.log".into()), min_level: 3 });
    assert_eq!(Rules::parse("").rules.log, Log { destination: Destination::Stderr, min_level: 9 });
    assert_eq!(Rules::parse("log destination syslog\n").rules.log.destination, Destination::Syslog);
}

#[test]
fn errors_say_where_and_what_and_the_rules_before_stay() {
    let cases = [
        ("allow all\n", 1, 1, "expected \"use\" or \"log\", found \"allow\""),
        ("use udp client x *:*\n", 1, 5, "expected \"tcp\", \"sdp\" or \"both\", found \"udp\""),
        ("use tcp peer x *:*\n", 1, 9, "\"server\", \"listen\", \"client\" or \"connect\""),
        ("use tcp client\n", 1, 15, "a program's name or *, found the line's end"),
        ("use tcp client 42 *:*\n", 1, 16, "a program's name or *"),
        ("use tcp client tcp *:*\n", 1, 16, "a program's name or *"),
        ("use tcp client x 1.2.3:*\n", 1, 18, "an address or *"),
        ("use tcp client x 1.2.3.4/33:*\n", 1, 26, "a number of bits (0 to 32)"),
        ("use tcp client x *\n", 1, 19, "\":\""),
        ("use tcp client x *:70000\n", 1, 20, "a port (0 to 65535)"),
        ("use tcp client x *:1-x\n", 1, 22, "a port"),
        ("use tcp client x *:1 2\n", 1, 22, "the line's end"),
        ("use tcp client x [::1:1\n", 1, 24, "\"]\""),
        ("\nlog destination printer\n", 2, 17, "\"stderr\", \"syslog\" or \"file\""),
        ("log min-level high\n", 1, 15, "a level"),
        ("Use tcp client x *:*\n", 1, 1, "expected \"use\" or \"log\""),
    ];
    for (text, line, column, what) in cases {
        let parsed = Rules::parse(&format!("use tcp server before *:*\n{text}use tcp server behind *:*\n"));
        let error = parsed.error.unwrap_or_else(|| panic!("{text}"));
        assert_eq!((error.line, error.column), (line + 1, column), "{text}: {error}");
        assert!(error.what.contains(what), "{text}: {error}");
        assert_eq!(parsed.rules.of(Role::Server).len(), 1);
    }
    assert_eq!(Rules::parse("use tcp server x *:*").warnings.len(), 1);
}

//! The network interfaces that NCCL may use.

use std::ffi::OsStr;

/// The loopback interface and no other whose name begins with it.
const LOOPBACK: &str = "=lo";
const INTERFACE: &str = "NCCL_SOCKET_IFNAME";
const NETWORK: &str = "NCCL_NET";
const RAS: &str = "NCCL_RAS_ENABLE";

/// Makes NCCL connect over the loopback interface only, unless `NCCL_SOCKET_IFNAME` already names
/// interfaces. Returns whether it may connect to other machines.
///
/// NCCL's connections are neither encrypted nor authenticated, so only the owner of the machine can
/// declare a network trusted. Call it first in `main`: it sets environment variables, which no
/// other thread may read at that time.
pub fn restrict_to_loopback() -> bool {
    let environment = Environment::of(std::env::var_os(INTERFACE).as_deref());
    for (name, value) in environment.variables {
        match value {
            Some(value) => std::env::set_var(name, value),
            None => std::env::remove_var(name),
        }
    }
    environment.reaches_other_machines
}

/// The environment variables of NCCL.
struct Environment {
    /// Each with its value. One without a value is not set.
    variables: Vec<(&'static str, Option<&'static str>)>,
    reaches_other_machines: bool,
}

impl Environment {
    /// The variables for a process in which `NCCL_SOCKET_IFNAME` names these interfaces.
    fn of(interfaces: Option<&OsStr>) -> Self {
        let mut variables = vec![
            // Otherwise a call could block without a way to interrupt it, or NCCL could use an
            // address of another interface.
            ("NCCL_COMM_BLOCKING", Some("0")),
            ("NCCL_COMM_ID", None),
            // NCCL's service for RAS listens on a port, which no ticket protects.
            (RAS, Some("0")),
            // Otherwise the first sum takes the memory of connections, when libtorch has taken all.
            ("NCCL_RUNTIME_CONNECT", Some("0")),
        ];
        let reaches_other_machines =
            interfaces.is_some_and(|named| !named.is_empty() && named != LOOPBACK);
        if !reaches_other_machines {
            // InfiniBand and plug-ins have interfaces of their own.
            variables.extend([(INTERFACE, Some(LOOPBACK)), (NETWORK, Some("Socket"))]);
        }
        Environment { variables, reaches_other_machines }
    }
}

/// An id that only processes with the same loopback interface share; empty if it cannot be found.
pub fn machine_id() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let network = std::fs::read_link("/proc/self/ns/net");
    match (boot, network) {
        (Ok(boot), Ok(network)) => format!("{} {}", boot.trim(), network.display()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn nccl_never_listens_for_ras_and_stays_on_the_machine_unless_interfaces_are_named() {
        for (named, expected) in [
            (None, false),
            (Some(""), false),
            (Some("=lo"), false),
            (Some("eth0"), true),
            (Some("lo"), true),
        ] {
            let found = Environment::of(named.map(OsStr::new));
            assert_eq!(found.reaches_other_machines, expected, "{named:?}");
            let variables = &found.variables;
            assert!(variables.contains(&("NCCL_RAS_ENABLE", Some("0"))), "{named:?}");
            assert!(variables.contains(&("NCCL_COMM_BLOCKING", Some("0"))), "{named:?}");
            assert!(variables.contains(&("NCCL_COMM_ID", None)), "{named:?}");
            assert!(variables.contains(&("NCCL_RUNTIME_CONNECT", Some("0"))), "{named:?}");
            for variable in [("NCCL_SOCKET_IFNAME", Some("=lo")), ("NCCL_NET", Some("Socket"))] {
                assert_eq!(variables.contains(&variable), !expected, "{named:?}");
            }
        }
    }

    const CHILD: &str = "nccl::network::tests::in_a_process_of_its_own";

    /// Other tests of this process may read its environment, so another process sets its own.
    #[test]
    fn the_environment_of_the_process_is_set() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD, "--ignored", "--test-threads", "1"])
            .env(RAS, "1")
            .env("NCCL_COMM_ID", "10.0.0.1:4242")
            .env_remove(INTERFACE)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    #[ignore = "sets the environment; `the_environment_of_the_process_is_set` runs it"]
    fn in_a_process_of_its_own() {
        assert!(!restrict_to_loopback());
        let value = |name| std::env::var(name).ok();
        assert_eq!(value(RAS).as_deref(), Some("0"));
        assert_eq!(value(INTERFACE).as_deref(), Some("=lo"));
        assert_eq!(value("NCCL_COMM_ID"), None);
    }

    #[test]
    fn this_process_is_on_the_machine_that_it_was_on() {
        assert_eq!(machine_id(), machine_id());
    }
}

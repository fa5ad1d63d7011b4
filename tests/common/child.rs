//! A test binary that starts itself again, as a process that may be killed, frozen, or may end by itself.
//!
//! The child is one test of the same file, run alone; it knows that it is the child by [`role`]:
//!
//! ```ignore
//! #[test]
//! fn a_holder_that_is_killed_leaves_its_key_for_one_lease() {
//!     if let Some(url) = child::role() {
//!         return hold_for_ever(&url); // prints "held"
//!     }
//!     let mut holder = child::spawn("a_holder_that_is_killed_leaves_its_key_for_one_lease", server.url());
//!     holder.line_with("held", Duration::from_secs(10));
//!     holder.kill9();
//! ```

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const ROLE: &str = "REDISSON_LOCK_TEST_CHILD";

/// What the parent gave this process, if it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A running child, killed on drop.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
}

/// Runs the test `name` of this file in a process of its own, where [`role`] is `role`.
pub fn spawn(name: &str, role: &str) -> Process {
    spawn_with(name, role, &[])
}

/// The same with more environment.
pub fn spawn_with(name: &str, role: &str, environment: &[(&str, &str)]) -> Process {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    // With one thread the harness would print the name of the test in front of its first line.
    command.args(["--exact", name, "--nocapture", "--include-ignored", "--test-threads", "2"]).env(ROLE, role);
    command.envs(environment.iter().copied());
    start(command)
}

/// Runs any program (an example, say) under the same handle.
pub fn start(mut command: Command) -> Process {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start a child");
    let (sender, lines) = channel();
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Process { child, lines }
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its next line; `None` if there is none within that time, or it has ended.
    pub fn line(&self, within: Duration) -> Option<String> {
        self.lines.recv_timeout(within).ok()
    }

    /// Waits for a line that contains `text`, and returns it.
    pub fn line_with(&self, text: &str, within: Duration) -> String {
        let deadline = Instant::now() + within;
        let mut seen = Vec::new();
        loop {
            match self.line(deadline.saturating_duration_since(Instant::now())) {
                Some(line) if line.contains(text) => return line,
                Some(line) => seen.push(line),
                None => panic!("the child did not say {text:?} within {within:?}, but {seen:#?}"),
            }
        }
    }

    /// Stops it where it stands; its connections stay.
    pub fn freeze(&self) {
        signal(self.pid(), "-STOP");
    }

    pub fn thaw(&self) {
        signal(self.pid(), "-CONT");
    }

    pub fn kill9(&mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("wait");
    }

    /// Waits for its end; whether it ended well.
    pub fn wait(&mut self, within: Duration) -> bool {
        self.status(within).success()
    }

    /// Waits for its end.
    pub fn status(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(Instant::now() < deadline, "the child did not end within {within:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal, as `-STOP`. With std alone, so through the `kill` of the shell; the program is not on every machine.
pub fn signal(pid: u32, signal: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill {signal} {pid}")]).status().expect("run sh");
    assert!(status.success(), "kill {signal} {pid}");
}

//! A test binary that starts itself again, as a process that may be killed or may end by itself.
//!
//! The child is one test of the same file, run alone; it knows that it is the child by [`role`].

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
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
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .expect("start a child");
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
    /// Waits for a line that contains `text`, and returns it.
    pub fn line_with(&self, text: &str, within: Duration) -> String {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(_) => panic!("the child did not say {text:?} within {within:?}"),
            }
        }
    }

    pub fn kill9(&mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("wait");
    }

    /// Waits for its end; whether it ended well.
    pub fn wait(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.success();
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

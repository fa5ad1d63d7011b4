//! What the crate tells through `tracing`, for tests that look at it. One collector for the process, because the client's own
//! thread speaks too; so look for a lock of the test's own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use parking_lot::Mutex;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

#[derive(Clone, Debug)]
pub struct Event {
    pub level: tracing::Level,
    pub message: String,
    /// As text; what the event names with `%` is as it is displayed.
    pub fields: BTreeMap<String, String>,
}

/// Starts collecting; call it before what is to be heard.
pub fn collect() -> &'static Events {
    static EVENTS: OnceLock<Events> = OnceLock::new();
    EVENTS.get_or_init(|| {
        let events = Events::default();
        let subscriber = tracing_subscriber::registry().with(Collector);
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber in a test process");
        events
    })
}

#[derive(Default)]
pub struct Events(Mutex<Vec<Event>>);

impl Events {
    /// The events so far of the lock with that name.
    pub fn of(&self, lock: &str) -> Vec<Event> {
        self.all().into_iter().filter(|e| e.fields.get("lock").is_some_and(|l| l == lock)).collect()
    }

    pub fn all(&self) -> Vec<Event> {
        self.0.lock().clone()
    }
}

struct Collector;

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if !event.metadata().target().starts_with("redisson_lock") {
            return;
        }
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        collect().0.lock().push(Event { level: *event.metadata().level(), message, fields: fields.0 });
    }
}

struct Fields(BTreeMap<String, String>);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

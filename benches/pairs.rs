//! What a lock and an unlock cost, beside two bare EVALSHA through fred on the same server in the same run.
//!
//! `cargo bench --bench pairs`, with `REDIS_URL` or a server on the default port. Ratios count, not the figures.
#![allow(missing_docs)]

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::Builder;
use redisson_lock::LockClient;

const ACQUIRE: &str = include_str!("../lua/acquire.lua");
const RELEASE: &str = include_str!("../lua/release.lua");

fn url() -> String {
    std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned())
}

/// Runs `rounds` of `one` on each of `callers` tasks at once.
async fn at_once<F, Fut>(callers: u64, rounds: u64, one: F) -> Duration
where
    F: Fn(u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let one = one.clone();
            tokio::spawn(async move {
                for _ in 0..rounds {
                    one(caller).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a caller");
    }
    start.elapsed()
}

fn pairs(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let locks = runtime.block_on(LockClient::connect(url())).expect("a server; set REDIS_URL");
    let bare = runtime.block_on(async {
        let config = fred::types::config::Config::from_url(&url()).expect("a URL");
        let client = Builder::from_config(config)
            .with_connection_config(|c| c.tcp.nodelay = Some(true))
            .build()
            .expect("a client");
        client.init().await.expect("a server");
        client
    });
    let sha = |source: &str| sha1_smol::Sha1::from(source).digest().to_string();
    let (acquire, release) = (sha(ACQUIRE), sha(RELEASE));

    let mut group = c.benchmark_group("pairs");
    for callers in [1, 16, 64, 256] {
        group.throughput(Throughput::Elements(callers));
        group.bench_with_input(BenchmarkId::new("redisson-lock", callers), &callers, |b, &callers| {
            b.iter_custom(|rounds| {
                let locks: Vec<_> = (0..callers).map(|i| locks.get_lock(format!("bench:{i}"))).collect();
                runtime.block_on(at_once(callers, rounds, move |caller| {
                    let lock = locks[caller as usize].clone();
                    async move { lock.lock().await.expect("lock").unlock().await.expect("unlock") }
                }))
            });
        });
        group.bench_with_input(BenchmarkId::new("bare-fred", callers), &callers, |b, &callers| {
            b.iter_custom(|rounds| {
                let (client, acquire, release) = (bare.clone(), acquire.clone(), release.clone());
                runtime.block_on(at_once(callers, rounds, move |caller| {
                    let (client, acquire, release) = (client.clone(), acquire.clone(), release.clone());
                    async move {
                        let key = format!("bench:bare:{caller}");
                        let args = vec!["30000".to_owned(), "holder:1".into(), "1".into()];
                        let taken: Option<i64> = client.evalsha(acquire, key.as_str(), args).await.expect("acquire");
                        assert_eq!(taken, None);
                        let channel = format!("redisson_lock__channel:{{{key}}}");
                        let args = vec![channel, "PUBLISH".into(), "holder:1".into(), "0".into()];
                        let _: i64 = client.evalsha(release, key.as_str(), args).await.expect("release");
                    }
                }))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, pairs);
criterion_main!(benches);

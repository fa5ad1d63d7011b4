import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/**
 * A process that takes Redisson locks on command: one command per line on stdin, one line of JSON per command on stdout.
 * README.md describes the lines.
 */
public final class Peer {
    private static final long DRAIN_MS = 5_000;

    private final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private final Map<String, Worker> workers = new HashMap<>();
    private final AtomicInteger unanswered = new AtomicInteger();
    private final RedissonClient redisson;

    private Peer(RedissonClient redisson) {
        this.redisson = redisson;
    }

    public static void main(String[] args) throws Exception {
        if (args.length < 1 || args.length > 2) {
            System.err.println("usage: Peer URL [LOCK-WATCHDOG-TIMEOUT-MS]");
            System.exit(2);
        }
        RedissonClient redisson;
        try {
            redisson = Redisson.create(config(args[0], args.length > 1 ? Long.parseLong(args[1]) : 30_000));
        } catch (Exception e) {
            System.err.println("peer: cannot start: " + e);
            Runtime.getRuntime().halt(1);
            return;
        }
        new Peer(redisson).serve();
        // Not shutdown(): whoever lets the peer go without an unlock gets what a process that ends gives, keys that expire.
        Runtime.getRuntime().halt(0);
    }

    private static Config config(String url, long watchdogMs) {
        URI uri = URI.create(url);
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdogMs);
        config.setThreads(4);
        config.setNettyThreads(4);
        SingleServerConfig server = config.useSingleServer();
        server.setAddress(uri.getScheme() + "://" + uri.getHost() + ":" + (uri.getPort() < 0 ? 6379 : uri.getPort()));
        server.setConnectionMinimumIdleSize(2);
        server.setSubscriptionConnectionMinimumIdleSize(1);
        String user = uri.getUserInfo();
        if (user != null) {
            int colon = user.indexOf(':');
            if (colon > 0) {
                server.setUsername(user.substring(0, colon));
            }
            server.setPassword(user.substring(colon + 1));
        }
        String path = uri.getPath();
        if (path != null && path.length() > 1) {
            server.setDatabase(Integer.parseInt(path.substring(1)));
        }
        return config;
    }

    private void serve() throws IOException, InterruptedException {
        String version = Redisson.class.getPackage().getImplementationVersion();
        say(new Json().put("id", 0).put("ready", true).put("redisson", version).put("uuid", redisson.getId())
                .put("pid", ProcessHandle.current().pid()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        long id = 0;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split("\\s+");
            if (words[0].isEmpty()) {
                continue;
            }
            if (words.length == 1 && words[0].equals("quit")) {
                break;
            }
            Command command = new Command(++id, words);
            unanswered.incrementAndGet();
            if (words.length < 2) {
                command.fail("THREAD COMMAND [ARGUMENT ...]");
                continue;
            }
            Worker worker = workers.computeIfAbsent(words[0], Worker::new);
            (command.verb.equals("tell") ? worker.told : worker.commands).add(command);
        }
        // What was asked is answered, but a lock that nobody releases does not keep an orphan alive.
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(DRAIN_MS);
        while (unanswered.get() > 0 && System.nanoTime() < end) {
            Thread.sleep(5);
        }
    }

    private void say(Json line) {
        synchronized (out) {
            out.println(line);
            out.flush();
        }
    }

    /** One peer thread: its commands run in order, in one Java thread, beside those of the other peer threads. */
    private final class Worker implements Runnable {
        final BlockingQueue<Command> commands = new LinkedBlockingQueue<>();
        final BlockingQueue<Command> told = new LinkedBlockingQueue<>();

        Worker(String name) {
            Thread thread = new Thread(this, name);
            thread.setDaemon(true);
            thread.start();
        }

        @Override
        public void run() {
            try {
                while (true) {
                    Command command = commands.take();
                    boolean granted = command.answer(() -> run(command));
                    if (granted && command.verb.equals("hold-until-told")) {
                        RLock lock = redisson.getLock(command.word(0));
                        told.take().answer(() -> {
                            lock.unlock();
                            return null;
                        });
                    }
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }

        private Object run(Command c) throws InterruptedException {
            if (c.verb.equals("id")) {
                return redisson.getId() + ":" + Thread.currentThread().getId();
            }
            RLock lock = redisson.getLock(c.word(0));
            switch (c.verb) {
                case "lock":
                case "hold-until-told":
                    lock.lock(c.number(1, -1), TimeUnit.MILLISECONDS);
                    return null;
                case "tryLock":
                    if (c.words() == 1) {
                        return lock.tryLock();
                    }
                    return lock.tryLock(c.number(1, 0), c.number(2, -1), TimeUnit.MILLISECONDS);
                case "unlock":
                    lock.unlock();
                    return null;
                case "forceUnlock":
                    return lock.forceUnlock();
                case "holdCount":
                    return lock.getHoldCount();
                case "isLocked":
                    return lock.isLocked();
                case "isHeld":
                    return lock.isHeldByCurrentThread();
                case "remainTimeToLive":
                    return lock.remainTimeToLive();
                case "holders":
                    Json holders = new Json();
                    redisson.<String, String>getMap(c.word(0), StringCodec.INSTANCE).readAllMap()
                            .forEach((holder, count) -> holders.put(holder, Long.valueOf(count)));
                    return holders;
                case "race":
                    return race(lock, c.word(1), c.number(2, 0), c.number(3, 0));
                default:
                    throw new Usage("unknown command " + c.verb);
            }
        }

        /** Critical sections around a counter that only the lock protects: {@code sections} of them, or {@code forMs} long; 0 is no limit. */
        private Json race(RLock lock, String counter, long sections, long forMs) {
            if (sections <= 0 && forMs <= 0) {
                throw new Usage("race KEY COUNTER SECTIONS [MILLISECONDS]: one of the two above 0");
            }
            RBucket<String> bucket = redisson.getBucket(counter, StringCodec.INSTANCE);
            long start = System.nanoTime();
            long done = 0;
            long longest = 0;
            while ((sections <= 0 || done < sections) && (forMs <= 0 || System.nanoTime() - start < forMs * 1_000_000)) {
                long asked = System.nanoTime();
                lock.lock();
                longest = Math.max(longest, System.nanoTime() - asked);
                try {
                    String value = bucket.get();
                    bucket.set(Long.toString(value == null ? 1 : Long.parseLong(value) + 1));
                } finally {
                    lock.unlock();
                }
                done++;
            }
            return new Json().put("done", done).put("longestWaitMs", longest / 1e6);
        }
    }

    private interface Action {
        Object run() throws Exception;
    }

    private final class Command {
        final long id;
        final String thread;
        final String verb;
        private final String[] line;

        Command(long id, String[] line) {
            this.id = id;
            this.line = line;
            this.thread = line[0];
            this.verb = line.length > 1 ? line[1] : "";
        }

        int words() {
            return line.length - 2;
        }

        String word(int i) {
            if (i >= words()) {
                throw new Usage(verb + ": argument " + (i + 1) + " is missing");
            }
            return line[i + 2];
        }

        long number(int i, long otherwise) {
            try {
                return i < words() ? Long.parseLong(line[i + 2]) : otherwise;
            } catch (NumberFormatException e) {
                throw new Usage(verb + ": " + line[i + 2] + " is not a whole number");
            }
        }

        /** Runs the action and answers; true when it did not throw. */
        boolean answer(Action action) {
            double startedAt = now();
            long start = System.nanoTime();
            Object result = null;
            Throwable error = null;
            try {
                result = action.run();
            } catch (Throwable e) {
                error = e;
            }
            double elapsed = (System.nanoTime() - start) / 1e6;
            Json json = new Json().put("id", id).put("thread", thread).put("command", verb);
            if (error == null) {
                json.put("ok", true).put("result", result);
            } else {
                json.put("ok", false)
                        .put("error", error instanceof Usage ? "usage" : error.getClass().getName())
                        .put("message", error.getMessage());
            }
            say(json.put("elapsedMs", elapsed).put("startedAt", startedAt).put("endedAt", now()));
            unanswered.decrementAndGet();
            return error == null;
        }

        void fail(String message) {
            answer(() -> {
                throw new Usage(message);
            });
        }
    }

    private static double now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1e3 + now.getNano() / 1e6;
    }

    private static final class Usage extends RuntimeException {
        private static final long serialVersionUID = 1;

        Usage(String message) {
            super(message);
        }
    }

    /** Just enough JSON: an object of strings, whole numbers, milliseconds, booleans, nulls and objects. */
    private static final class Json {
        private final StringBuilder text = new StringBuilder("{");

        Json put(String key, Object value) {
            if (text.length() > 1) {
                text.append(',');
            }
            quote(key);
            text.append(':');
            if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long || value instanceof Json) {
                text.append(value);
            } else if (value instanceof Double) {
                text.append(String.format(Locale.ROOT, "%.3f", (Double) value));
            } else {
                quote(value.toString());
            }
            return this;
        }

        private void quote(String s) {
            text.append('"');
            for (char c : s.toCharArray()) {
                if (c == '"' || c == '\\') {
                    text.append('\\').append(c);
                } else if (c < ' ') {
                    text.append(String.format("\\u%04x", (int) c));
                } else {
                    text.append(c);
                }
            }
            text.append('"');
        }

        @Override
        public String toString() {
            return text + "}";
        }
    }
}

//! `softrnic group-serve` and `softrnic group-client`: replicas of a chain, and gWRITEs along it (docs/group.md).

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use group::{Client, ClientOptions, Error, MOST_WINDOW, Operation, Server, ServerOptions, Wait};
use hdrhistogram::Histogram;
use rdma::Access;

use crate::fixture::{DeviceOptions, text};
use crate::out::say;

/// Options of the replicas.
#[derive(Args)]
pub struct ServeOptions {
    /// TCP port that clients, and replicas before this one, connect to; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = 50000)]
    port: u16,
    /// The replica behind this one, which was started before; without it this is the last one
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// Bytes of the region; as many on all replicas of a chain
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    region: usize,
    /// Replicas that this process is, one behind the other
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    replicas: u32,
    #[command(flatten)]
    device: DeviceOptions,
}

/// Options of the client.
#[derive(Args)]
pub struct ClientCommand {
    /// The replica that was started last
    #[arg(short, long, value_name = "HOST:PORT")]
    connect: String,
    /// Bytes of a gWRITE
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024)]
    size: u64,
    /// The number of gWRITEs
    #[arg(short, long, value_name = "COUNT", default_value_t = 5000)]
    number: u64,
    /// Operations under way at most, up to 2000
    #[arg(short, long, value_name = "COUNT", default_value_t = 1)]
    window: u32,
    /// Wait by events instead of polling
    #[arg(long)]
    use_notify: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

fn resolve(name: &str) -> Result<SocketAddr, String> {
    let mut found = name.to_socket_addrs().map_err(|error| format!("{name}: {error}"))?;
    found.next().ok_or_else(|| format!("{name} has no address"))
}

/// Be replicas until the process is ended.
pub fn serve(options: &ServeOptions) -> Result<ExitCode, String> {
    let fixture = options.device.open()?;
    let mut next = options.connect.as_deref().map(resolve).transpose()?;
    let mut servers = Vec::new();
    for left in (0..options.replicas).rev() {
        // Only the first of the chain has the port; the others are reached by it.
        let (host, port) = if left == 0 { ([0, 0, 0, 0], options.port) } else { ([127, 0, 0, 1], 0) };
        let listen = SocketAddr::from((host, port));
        let server = Server::start(&fixture.context, &ServerOptions { listen, next, region: options.region });
        let server = server.map_err(|error| format!("cannot serve at {listen}: {error}"))?;
        next = Some(server.addr());
        servers.push(server);
    }
    let first = next.ok_or("a process is at least 1 replica")?;
    say!("replicas: {}, of {} bytes; port {}", options.replicas, options.region, first.port());
    loop {
        std::thread::park();
    }
}

/// Measure gWRITEs.
pub fn client(options: &ClientCommand) -> Result<ExitCode, String> {
    let window = options.window.clamp(1, MOST_WINDOW);
    if window != options.window {
        eprintln!("softrnic: the window is {window}, not {}", options.window);
    }
    if options.size == 0 {
        return Err("a gWRITE has at least 1 byte".into());
    }
    let fixture = options.device.open()?;
    let buffer = fixture.pd.reg_mr(options.size as usize, Access::LOCAL_WRITE).map_err(text)?;
    let told = |error: Error| format!("{}: {error}", options.connect);
    let settings = ClientOptions { window, ..ClientOptions::default() };
    let to = resolve(&options.connect)?;
    let mut client = Client::connect(&fixture.context, &fixture.pd, to, buffer, &settings).map_err(told)?;
    let how = if options.use_notify { Wait::Event } else { Wait::Poll };
    let op = Operation::Write { offset: 0, size: options.size };
    let mut took = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).map_err(|error| error.to_string())?;
    let mut begun = vec![Instant::now(); window as usize];
    let (mut sent, mut done) = (0u64, 0u64);
    let start = Instant::now();
    while done < options.number {
        if sent < options.number {
            let now = Instant::now();
            match client.submit(&op) {
                Ok(ticket) => {
                    begun[(ticket % u64::from(window)) as usize] = now;
                    sent += 1;
                    continue;
                }
                Err(Error::Full) => {}
                Err(error) => return Err(told(error)),
            }
        }
        // The window is full of requests that are done, but whose places are not free yet.
        if client.under_way() == 0 {
            continue;
        }
        let ticket = client.wait(how).map_err(told)?.ticket;
        took.saturating_record(begun[(ticket % u64::from(window)) as usize].elapsed().as_nanos() as u64);
        done += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
    let at = |quantile: f64| took.value_at_quantile(quantile) as f64 / 1000.0;
    let [p50, p95, p99, p999] = [0.5, 0.95, 0.99, 0.999].map(at);
    let most = took.max() as f64 / 1000.0;
    let (replicas, size) = (client.replicas(), options.size);
    if options.json {
        say!(
            "{}",
            serde_json::json!({
                "replicas": replicas, "size": size, "window": window, "operations": done, "seconds": seconds,
                "operations_per_second": rate,
                "microseconds": { "p50": p50, "p95": p95, "p99": p99, "p99.9": p999, "max": most },
            })
        );
    } else {
        say!("{done} gWRITEs of {size} bytes to {replicas} replicas, {window} at a time: {seconds:.3} s, {rate:.0}/s");
        say!("submission to completion, us: p50 {p50:.1}, p95 {p95:.1}, p99 {p99:.1}, p99.9 {p999:.1}, max {most:.1}");
    }
    Ok(ExitCode::SUCCESS)
}

import AppStoreSimulator
import AsyncHTTPClient
import Foundation
import NIOCore
import NIOHTTP1
import Synchronization

/// Apps that post purchases at a rate, whatever becomes of those before (open loop), and try again until accepted.
final class Traffic: Sendable {
    /// Buyers and their posts that are open at the same time; beyond it the load stops growing and says so.
    static let openMax = 60_000
    /// A group of tasks goes through all of them when one ends: so many groups.
    private static let streets = 64
    /// An app waits so long for an answer at most, as gateways do.
    static let patienceMax = TimeAmount.seconds(60)
    /// An app waits so long before it tries again.
    private static let pauses: [Duration] = [.milliseconds(100), .milliseconds(200), .milliseconds(500), .seconds(1)]

    let shop: PurchaseGenerator
    let journal = Journal()
    /// Addresses of the ingests that are up.
    private let addresses: @Sendable () -> [String]
    private let pools: [HTTPClient]
    private let rate: Mutex<Double>
    /// An app waits so long for an answer.
    private let patience = Mutex(TimeAmount.seconds(20))
    private let mix: Mutex<PurchaseGenerator.Mix>
    private let isOver = Atomic<Bool>(false)
    private let isPaused = Atomic<Bool>(false)
    private let random: Mutex<SplitMix64>
    /// Requests open at each address.
    private let openRequests = Mutex<[String: Int]>([:])

    init(
        shop: PurchaseGenerator, rate: Double, seed: UInt64, pools: [HTTPClient],
        addresses: @escaping @Sendable () -> [String]
    ) {
        self.shop = shop
        self.pools = pools
        self.addresses = addresses
        self.rate = Mutex(rate)
        mix = Mutex(PurchaseGenerator.Mix())
        random = Mutex(SplitMix64(seed: seed))
    }

    /// Purchases a second from now on.
    func set(rate: Double) { self.rate.withLock { $0 = rate } }
    func set(patience: TimeAmount) { self.patience.withLock { $0 = patience } }
    func set(_ mix: PurchaseGenerator.Mix) { self.mix.withLock { $0 = mix } }

    /// Nobody buys anything new until `resume`.
    func pause() { isPaused.store(true, ordering: .sequentiallyConsistent) }
    func resume() { isPaused.store(false, ordering: .relaxed) }

    /// Where a client may be sent now.
    var openAddresses: [String] { addresses() }

    func openRequests(at address: String) -> Int { openRequests.withLock { $0[address] ?? 0 } }

    /// No new purchases; the apps go on until theirs are accepted.
    func stop() { isOver.store(true, ordering: .sequentiallyConsistent) }

    /// Runs until `stop`, and until every app has its answer or the task is cancelled.
    func run() async {
        let streets = (0..<Self.streets).map { _ in AsyncStream<Void>.makeStream() }
        await withDiscardingTaskGroup { group in
            for street in streets { group.addTask { await self.serve(street.stream) } }
            var next = ContinuousClock.now
            var buyers = 0
            while !isOver.load(ordering: .relaxed), !Task.isCancelled {
                if isPaused.load(ordering: .relaxed) {
                    try? await Task.sleep(for: .milliseconds(20))
                    next = .now
                    continue
                }
                next += .seconds(1 / rate.withLock { $0 })
                try? await Task.sleep(until: next, tolerance: .zero, clock: .continuous)
                guard journal.open < Self.openMax else {
                    journal.surprise("\(Self.openMax) apps wait: the load was held back")
                    next = .now
                    continue
                }
                // First open, then looked at: who stops the load and sees nobody open can be sure that nobody comes.
                journal.began()
                guard !isOver.load(ordering: .sequentiallyConsistent), !isPaused.load(ordering: .sequentiallyConsistent)
                else {
                    journal.ended()
                    continue
                }
                streets[buyers % streets.count].continuation.yield()
                buyers += 1
            }
            for street in streets { street.continuation.finish() }
            if Task.isCancelled { group.cancelAll() }
        }
    }

    /// The buyers of a street, each a task.
    private func serve(_ street: AsyncStream<Void>) async {
        await withDiscardingTaskGroup { group in
            for await _ in street {
                group.addTask {
                    // Open until its last post: also between two of them.
                    defer { self.journal.ended() }
                    await self.buy()
                }
            }
        }
    }

    private func buy() async {
        do {
            let post = try await shop.next(mix.withLock { $0 }, place: place)
            switch post.repetition {
            case .none: await submit(post)
            case .later:
                await submit(post)
                try? await Task.sleep(for: .milliseconds(random.withLock { Int($0.next() % 2000) }))
                await submit(post)
            case .parallel:
                await withDiscardingTaskGroup { group in
                    for _ in 0..<3 { group.addTask { await self.submit(post) } }
                }
            }
            if post.kind == .stolen { await submit(shop.steal(post)) }
        } catch {
            journal.surprise("no purchase: \(error)")
        }
    }

    /// One app posts until it has a final answer: 200 or 202, or 400 for what nobody can read.
    @discardableResult
    func submit(_ post: PurchaseGenerator.Post) async -> UUID? {
        journal.began()
        defer { journal.ended() }
        var tries = 0
        while !Task.isCancelled {
            switch await attempt(post) {
            case .final(let receiptID): return receiptID
            case .again(let wait):
                let jitter = random.withLock { $0.unit() }
                let pause = Self.pauses[min(tries, Self.pauses.count - 1)] * (0.5 + jitter)
                try? await Task.sleep(for: max(pause, wait))
            }
            tries += 1
        }
        return nil
    }

    private enum Outcome {
        case final(UUID?)
        /// Not before Retry-After, where there is one.
        case again(after: Duration)
    }

    private func attempt(_ post: PurchaseGenerator.Post) async -> Outcome {
        let addresses = self.addresses()
        let start = ContinuousClock.now
        guard !addresses.isEmpty else {
            journal.record(post, status: 0, receiptID: nil, loss: "no ingest is up", seconds: 0)
            return .again(after: .zero)
        }
        do {
            let (status, id, wait) = try await send(
                post.body, to: "/v1/receipts", key: post.needsClaim ? Access.backend : Access.app, at: addresses)
            let seconds = (ContinuousClock.now - start) / .seconds(1)
            journal.record(post, status: status, receiptID: id, seconds: seconds)
            switch status {
            case 200, 202:
                if id == nil { journal.surprise("\(status) without a receipt's id") }
                return .final(id)
            case 400 where post.isRefused: return .final(nil)
            case 503:
                if wait == nil { journal.surprise("503 without Retry-After") }
                return .again(after: .seconds(wait ?? 0))
            default:
                journal.surprise("\(post.kind.rawValue) was answered \(status)")
                return .again(after: .zero)
            }
        } catch {
            let seconds = (ContinuousClock.now - start) / .seconds(1)
            journal.record(post, status: 0, receiptID: nil, loss: "\(error)", seconds: seconds)
            return .again(after: .zero)
        }
    }

    /// Places an order until it is acknowledged; its id. Nil where the load was cancelled.
    private func place(user: String, product: String, key: String) async -> UUID? {
        let body = Array(
            """
            {"appId":"\(PurchaseGenerator.app)","userId":"\(user)","productId":"\(product)","idempotencyKey":"\(key)"}
            """.utf8)
        while !Task.isCancelled {
            let addresses = self.addresses()
            if !addresses.isEmpty,
                let (status, id, _) = try? await send(body, to: "/v1/orders", key: Access.app, at: addresses)
            {
                if status == 200 || status == 201, let id { return id }
                if status != 503 { journal.surprise("an order was answered \(status)") }
            }
            try? await Task.sleep(for: Self.pauses[2])
        }
        return nil
    }

    /// One request to one of the addresses. `wait`: what Retry-After says, in seconds.
    private func send(
        _ body: [UInt8], to path: String, key: String, at addresses: [String]
    ) async throws -> (status: Int, id: UUID?, wait: Int?) {
        let (address, pool) = random.withLock { random in
            (addresses[Int(random.next() % UInt64(addresses.count))], pools[Int(random.next() % UInt64(pools.count))])
        }
        openRequests.withLock { $0[address, default: 0] += 1 }
        defer { openRequests.withLock { $0[address, default: 0] -= 1 } }
        var request = HTTPClientRequest(url: address + path)
        request.method = .POST
        request.headers.add(name: "Content-Type", value: "application/json")
        request.headers.add(name: "Authorization", value: "Bearer \(key)")
        request.body = .bytes(ByteBuffer(bytes: body))
        let response = try await pool.execute(request, timeout: patience.withLock { $0 })
        let answer = try await response.body.collect(upTo: 1 << 20)
        let object = try? JSONSerialization.jsonObject(with: Data(answer.readableBytesView)) as? [String: Any]
        return (
            Int(response.status.code), (object?["id"] as? String).flatMap(UUID.init(uuidString:)),
            response.headers.first(name: "retry-after").flatMap { Int($0) }
        )
    }
}

/// The keys of a drill's deployment.
enum Access {
    /// The apps' gateway.
    static let app = "app-key-of-the-drill"
    /// A trusted backend that vouches for its users.
    static let backend = "backend-key-of-the-drill"
}

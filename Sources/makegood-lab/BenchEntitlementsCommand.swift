import ArgumentParser
import AsyncHTTPClient
import Commands
import Foundation
import NIOCore
import NIOHTTP1
import Postgres

/// `makegood-lab bench entitlements`: compares the rate at which ingest says what a user may use with the rate at which
/// it says what became of a receipt. Hidden: it writes subscriptions that nobody bought.
struct BenchEntitlementsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "entitlements",
        abstract: "Ask a running ingest for entitlements and for receipts, in turn, and say how many a second.",
        discussion: """
            Asks over HTTP about \(Readers.count) users, each with a subscription of twelve periods, and about a receipt \
            of each; five turns of both, the median counts. Prints one line of JSON: {"entitlementsPerSecond", \
            "receiptsPerSecond", "ratio"}. Needs the database of that ingest, filled by makegood-lab bench fill; --grants \
            fills it first. `makegood check` holds no more afterwards.
            """, shouldDisplay: false)

    @Option(help: ArgumentHelp("The ingest.", valueName: "url"))
    var url = "http://127.0.0.1:8080"

    @Option(help: "The key of a caller with the scope intake.")
    var key: String

    @Option(help: ArgumentHelp("The app that was filled.", valueName: "id"))
    var app = "game"

    @Option(help: ArgumentHelp("Fill an empty database with so many grants first.", valueName: "number"))
    var grants: Int?

    @Option(help: ArgumentHelp("Connections, each with one request at a time.", valueName: "number"))
    var connections = 32

    @Option(help: "How long all turns take.")
    var seconds = 30.0

    private static let turns = 5

    func validate() throws {
        if let grants, !(1...900_000_000).contains(grants) {
            throw ValidationError("--grants must be 1 to 900000000")
        }
        guard (1...1024).contains(connections) else { throw ValidationError("--connections must be 1 to 1024") }
        guard (1...3600).contains(seconds) else { throw ValidationError("--seconds must be 1 to 3600") }
    }

    func run() async throws {
        // Of 100 receipts of a fill 92 are granted.
        if let grants {
            try await BenchFillCommand.parse(["--rows", "\((grants * 100 + 91) / 92)", "--app", app]).run()
        }
        let receipts = try await Connections.withDatabase("bench-entitlements", patience: .seconds(600)) { database in
            try await database.run(Readers.subscribe, app)
            for table in ["transactions", "ownerships"] {
                try await database.run(Statement<Void, Void>("bench.vacuum", "vacuum (analyze) \(table)"))
            }
            return try await database.run(Readers.receipts, app)
        }
        guard !receipts.isEmpty else {
            throw ValidationError("the database holds no receipts of \(app): --grants fills an empty one")
        }
        let paths = (
            entitlements: (0..<Readers.count).map { "/v1/users/u\($0)/entitlements?appId=\(app)" },
            receipts: receipts.map { "/v1/receipts/\($0)" }
        )
        var configuration = HTTPClient.Configuration()
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = connections
        configuration.httpVersion = .http1Only
        let http = HTTPClient(configuration: configuration)
        do {
            var rates: (entitlements: [Double], receipts: [Double]) = ([], [])
            // The first turn of each kind warms the caches and does not count.
            for turn in 0...Self.turns {
                for isOfReceipts in turn % 2 == 0 ? [false, true] : [true, false] {
                    let rate = try await rate(of: isOfReceipts ? paths.receipts : paths.entitlements, http)
                    guard turn > 0 else { continue }
                    if isOfReceipts { rates.receipts.append(rate) } else { rates.entitlements.append(rate) }
                }
            }
            try await http.shutdown()
            let (entitlements, receipts) = (median(rates.entitlements), median(rates.receipts))
            Terminal.show(
                "{\"entitlementsPerSecond\":\(entitlements.rounded(to: 0)),"
                    + "\"receiptsPerSecond\":\(receipts.rounded(to: 0)),"
                    + "\"ratio\":\((entitlements / receipts).rounded(to: 3)),\"connections\":\(connections)}")
        } catch {
            try? await http.shutdown()
            throw error
        }
    }

    private func median(_ values: [Double]) -> Double { values.sorted()[values.count / 2] }

    /// Answers a second of one turn: each connection asks about one path after the other.
    private func rate(of paths: [String], _ http: HTTPClient) async throws -> Double {
        let (start, length) = (ContinuousClock.now, Duration.seconds(seconds / Double(2 * (Self.turns + 1))))
        let answers = try await withThrowingTaskGroup(of: Int.self) { group in
            for first in 0..<connections {
                group.addTask {
                    var (count, place) = (0, first)
                    while ContinuousClock.now < start + length {
                        try await ask(paths[place % paths.count], http)
                        (count, place) = (count + 1, place + connections)
                    }
                    return count
                }
            }
            return try await group.reduce(0, +)
        }
        return Double(answers) / ((ContinuousClock.now - start) / .seconds(1))
    }

    private func ask(_ path: String, _ http: HTTPClient) async throws {
        var request = HTTPClientRequest(url: url + path)
        request.headers.add(name: "Authorization", value: "Bearer \(key)")
        let answer = try await http.execute(request, timeout: .seconds(30))
        _ = try await answer.body.collect(upTo: 1 << 20)
        guard answer.status == .ok else { throw ValidationError("\(path) was answered \(answer.status.code)") }
    }
}

/// The users who are asked about, among those of a fill.
private enum Readers {
    static let count = 10_000

    /// Gives each a running subscription of twelve periods.
    static let subscribe = Statement<String, Void>(
        "bench.subscribe",
        """
        with bought as (
          insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, kind,
            quantity, purchased_at, expires_at, ownership, signed_at, facts)
          select 'sub-' || $1 || n || '-' || m, $1, 'Production', 'sub-' || $1 || n || '-1', 'com.example.bench.pass',
            'Auto-Renewable Subscription', 1, now() - (12 - m) * interval '30 days',
            now() - (11 - m) * interval '30 days', 'PURCHASED', now() - (12 - m) * interval '30 days',
            '{"price": 990, "reason": "RENEWAL", "currency": "USD", "storefront": "USA"}'
          from generate_series(0, \(count - 1)) n, generate_series(1, 12) m
          on conflict do nothing)
        insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
          binding_source)
        select $1, 'Production', 'sub-' || $1 || n || '-1', now() - interval '330 days', 'sub-' || $1 || n || '-1',
          'u' || n, 'poster'
        from generate_series(0, \(count - 1)) n
        on conflict do nothing
        """,
        bind: { [.text($0)] })

    static let receipts = Statement<String, String>(
        "bench.receipts_of_readers",
        """
        select r.id::text from generate_series(0, \(count - 1)) n cross join lateral (
          select id from receipts where app_id = $1 and user_id = 'u' || n and state = 'granted'
          order by received_at desc limit 1) r
        """,
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in try row.text(0) })
}

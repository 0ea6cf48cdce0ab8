import Encoding
import Foundation
package import Postgres

/// The report of a day (UTC): what came in, what became of it, and what is still open (L1, L5, L6). The text for people
/// and the JSON are made from this value alone. Times are texts as RFC 3339 writes them, and no field names a user.
package struct DayReport: Codable, Sendable, Equatable {
    /// Items that came in on the day by one way and have one state now: a row of `v_clearing`.
    package struct Received: Codable, Sendable, Equatable {
        /// `receipts`, `notifications`, `grants`, `ends`, `refund requests` or `Apple updates`.
        package var account: String
        /// Empty: no app here has the bundle id.
        package var appId: String
        /// Empty: not known.
        package var environment: String
        package var source: String
        package var state: String
        package var items: Int
        /// The items of which nothing has become yet.
        package var balance: Int
        /// The arrival of the oldest item of the balance.
        package var oldestAt: String?
    }

    /// Open receipts or notifications of whichever day, held and parked ones with their reason.
    package struct Open: Codable, Sendable, Equatable {
        package var account: String
        package var appId: String
        package var state: String
        package var reason: String
        package var items: Int
        package var oldestAt: String?
    }

    /// Items of an account of which nothing has become for longer than the account's limit.
    package struct Overdue: Codable, Sendable, Equatable {
        package var account: String
        package var appId: String
        package var items: Int
        package var oldestAt: String
        /// The oldest ones, at most ten.
        package var ids: [String]
        /// The command that mends the oldest one, or that names its obstacle.
        package var command: String
    }

    /// The purchases and ends that a question to Apple told first on the day.
    package struct Net: Codable, Sendable, Equatable {
        package var appId: String
        package var environment: String
        package var net: String
        /// `purchase`, `end` or `reversal`.
        package var kind: String
        package var told: Int
        /// Before any post and notification.
        package var caught: Int
        /// And no post and no notification has come since.
        package var alone: Int
    }

    /// Differences between Apple's books and ours.
    package struct Difference: Codable, Sendable, Equatable {
        package var appId: String
        package var category: String
        /// `receipt`, `follow-up` or `person`.
        package var healsBy: String
        /// On the day, as the next two.
        package var found: Int
        package var healed: Int
        package var closed: Int
        /// Of whichever day.
        package var open: Int
        package var oldestAt: String?
    }

    /// The seals of the ledger.
    package struct Seals: Codable, Sendable, Equatable {
        /// The newest block when the report was read, its hash in hexadecimal, and its time.
        package var block: Int
        package var head: String
        package var sealedAt: String
        /// Blocks of the day, and corrections of the day.
        package var blocks: Int
        package var corrections: Int
    }

    /// The audit by sample of an app and environment.
    package struct Sample: Codable, Sendable, Equatable {
        package var appId: String
        package var environment: String
        /// Apple's customers of the app that this server knows.
        package var population: Int
        package var drawn: Int
        package var compared: Int
        package var differences: Int
        /// The differences that a person has closed.
        package var explained: Int
        /// With 95 % confidence fewer unexplained differences come on a customer. Nil: nobody was compared.
        package var bound: Double?
    }

    /// As `2026-11-29`.
    package var day: String
    /// Nil: all apps.
    package var app: String?
    /// By the database's clock.
    package var readAt: String
    /// Whether the day was over by then.
    package var isOver: Bool
    package var received: [Received]
    package var open: [Open]
    package var overdue: [Overdue]
    package var nets: [Net]
    package var differences: [Difference]
    /// Nil: nothing is sealed yet.
    package var seals: Seals?
    package var sample: [Sample]
}

extension DayReport {
    /// Why there is no report of a day. Not retryable: another day or app must be named. The text names the option.
    package enum Problem: Error, Sendable, Equatable, CustomStringConvertible {
        case noDay
        case inFuture(today: String)
        case tooOld(first: String)
        case unknownApp

        package var description: String {
            switch self {
            case .noDay: "--day must be a day such as 2026-11-29"
            case .inFuture(let today): "--day has not begun: today is \(today) (UTC, by the database's clock)"
            case .tooOld(let first): "--day is too long ago: reports begin with \(first)"
            case .unknownApp: "--app names no app that a service was ever started for"
            }
        }
    }

    /// Reads the report of a day, an hour of the day in each statement, so that no statement reads long.
    ///
    /// - Parameters:
    ///   - day: as `2026-11-29`.
    ///   - appID: nil for all apps.
    /// - Throws: ``Problem``, or the database's error, retryable as it says.
    package static func read(day: String, appID: String?, in database: Database) async throws -> DayReport {
        guard isDay(day) else { throw Problem.noDay }
        let question = Statements.DayQuestion(day: day, appID: appID)
        guard let place = try await database.run(Statements.dayOfReport, question).first else { throw Problem.noDay }
        guard place.hasBegun else { throw Problem.inFuture(today: place.today) }
        guard day >= place.first else { throw Problem.tooOld(first: place.first) }
        guard place.isKnownApp else { throw Problem.unknownApp }
        var received: [Received] = []
        for hour in 0..<24 {
            received += try await database.run(Statements.receivedInHour, .init(question: question, hour: hour))
        }
        return DayReport(
            day: day, app: appID, readAt: place.readAt, isOver: place.isOver, received: sums(received),
            open: try await database.run(Statements.openOfReport, appID),
            overdue: try await database.run(Statements.overdueOfReport, appID),
            nets: try await database.run(Statements.netsOfReport, question),
            differences: try await database.run(Statements.differencesOfReport, question),
            seals: try await database.run(Statements.sealsOfReport, day).first,
            sample: try await database.run(Statements.sampleOfReport, question))
    }

    private static func isDay(_ text: String) -> Bool {
        text.utf8.count == 10 && Date(rfc3339: text + "T00:00:00Z") != nil
    }

    /// The rows of the hours as one row for each way and state, in order.
    private static func sums(_ rows: [Received]) -> [Received] {
        let ways = Dictionary(grouping: rows) { row in
            [row.account, row.appId, row.environment, row.source, row.state].map { Array($0.utf8) }
        }
        let sums = ways.values.map { rows in
            var sum = rows[0]
            sum.items = rows.reduce(0) { $0 + $1.items }
            sum.balance = rows.reduce(0) { $0 + $1.balance }
            sum.oldestAt = rows.compactMap(\.oldestAt).min()
            return sum
        }
        return sums.sorted {
            ($0.place, $0.appId, $0.environment, $0.source, $0.state)
                < ($1.place, $1.appId, $1.environment, $1.source, $1.state)
        }
    }

    /// The JSON of the report, one line, with its keys in order.
    package var json: String {
        get throws {
            let encoder = JSONEncoder()
            encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
            return String(decoding: try encoder.encode(self), as: UTF8.self)
        }
    }

    /// - Throws: a `DecodingError` where the text is no report of this version.
    package init(json: String) throws {
        self = try JSONDecoder().decode(DayReport.self, from: Data(json.utf8))
    }
}

extension DayReport.Received {
    /// The accounts in the order of a purchase's way.
    package static let accounts = [
        "receipts", "notifications", "grants", "hand-outs", "ends", "refund requests", "Apple updates",
    ]

    fileprivate var place: Int { Self.accounts.firstIndex(of: account) ?? Self.accounts.count }
}

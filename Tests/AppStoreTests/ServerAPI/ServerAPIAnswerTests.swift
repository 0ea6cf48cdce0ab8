import Foundation
import TestRandom
import Testing

@testable import AppStore
@testable import Encoding

// Goal: a value, a field or a fraction that Apple adds tomorrow is read today, and a value of another type is
// never a crash (AppleFacts 0). Method: a full sample of each answer, and every change to it that JSON allows.

@Suite struct ServerAPIAnswerTests {
    /// One kind of answer: a sample with every documented field, and its reader.
    struct Kind: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let sample: JSON
        let read: @Sendable ([String: JSON]) throws -> any Sendable & Hashable

        init(
            _ name: String, _ sample: String,
            _ read: @escaping @Sendable ([String: JSON]) throws -> any Sendable & Hashable
        ) {
            testDescription = name
            self.sample = try! JSON(parsing: Array(sample.utf8))
            self.read = read
        }

        func value(of body: JSON) throws -> AnyHashable { AnyHashable(try read(try #require(body.object))) }
    }

    static let kinds = [
        Kind(
            "transaction history",
            #"{"revision":"r","hasMore":false,"bundleId":"b","appAppleId":9007199254740993,"environment":"Sandbox","#
                + #""signedTransactions":["a","b"]}"#
        ) { try HistoryPage($0) },
        Kind("refund history", #"{"revision":"r","hasMore":false,"signedTransactions":["a"]}"#) { try RefundPage($0) },
        Kind("order", #"{"status":0,"signedTransactions":["a"]}"#) { try OrderLookUp($0) },
        Kind(
            "subscription statuses",
            #"{"environment":"Production","bundleId":"b","appAppleId":1,"data":[{"subscriptionGroupIdentifier":"g","#
                + #""lastTransactions":[{"status":4,"originalTransactionId":"1","signedTransactionInfo":"a","#
                + #""signedRenewalInfo":"b"}]}]}"#
        ) { try SubscriptionStatuses($0) },
        Kind(
            "extended renewal date",
            #"{"originalTransactionId":"1","webOrderLineItemId":"2","success":true,"effectiveDate":1780000000123}"#
        ) { try ExtendedRenewalDate($0) },
        Kind(
            "mass extension",
            #"{"requestIdentifier":"q","complete":true,"completeDate":1780000000123,"succeededCount":3000000000,"#
                + #""failedCount":2}"#
        ) { try MassRenewalExtensionStatus($0) },
        Kind(
            "test notification",
            #"{"signedPayload":"a","sendAttempts":[{"attemptDate":1780000000123,"sendAttemptResult":"SUCCESS"}]}"#
        ) { try SentNotification($0) },
        Kind(
            "notification history",
            #"{"paginationToken":"p","hasMore":false,"notificationHistory":[{"signedPayload":"a","sendAttempts":"#
                + #"[{"attemptDate":1780000000123,"sendAttemptResult":"TIMED_OUT"}]}]}"#
        ) { try NotificationPage($0) },
    ]

    @Test func `every documented field is read`() throws {
        func object(_ index: Int) throws -> [String: JSON] { try #require(Self.kinds[index].sample.object) }
        let history = try HistoryPage(try object(0))
        #expect(history.signedTransactions == ["a", "b"] && history.revision == "r" && history.next == nil)
        #expect(history.bundleId == "b" && history.environment == .sandbox)
        #expect(history.appAppleId == 9_007_199_254_740_993, "beyond what a Double can hold")
        #expect(try RefundPage(try object(1)).signedTransactions == ["a"])
        #expect(try OrderLookUp(try object(2)).status == .valid)
        let statuses = try SubscriptionStatuses(try object(3))
        let last = try #require(statuses.groups.first?.lastTransactions.first)
        #expect(statuses.groups.map(\.subscriptionGroupIdentifier) == ["g"] && last.status == .gracePeriod)
        #expect(last.originalTransactionId == "1")
        #expect(last.signedTransactionInfo == "a" && last.signedRenewalInfo == "b")
        #expect(statuses.environment == .production && statuses.bundleId == "b" && statuses.appAppleId == 1)
        let date = Date(timeIntervalSince1970: 1_780_000_000.123)
        let extended = try ExtendedRenewalDate(try object(4))
        #expect(extended.success == true && extended.effectiveDate == date && extended.originalTransactionId == "1")
        #expect(extended.webOrderLineItemId == "2")
        let mass = try MassRenewalExtensionStatus(try object(5))
        #expect(mass.complete == true && mass.completeDate == date && mass.requestIdentifier == "q")
        #expect(mass.succeededCount == 3_000_000_000 && mass.failedCount == 2)
        let test = try SentNotification(try object(6))
        #expect(test.signedPayload == "a")
        #expect(test.sendAttempts.map(\.result) == [.success] && test.sendAttempts.map(\.date) == [date])
        let page = try NotificationPage(try object(7))
        #expect(page.notifications.flatMap(\.sendAttempts).map(\.result) == [.timedOut] && page.next == nil)
    }

    @Test func `unknown values stay what they are, fractions of a millisecond are kept`() throws {
        func read<Value>(_ text: String, _ read: ([String: JSON]) throws -> Value) throws -> Value {
            try read(try #require(try JSON(parsing: Array(text.utf8)).object))
        }
        let statuses = try read(
            #"{"environment":"Moon","data":[{"lastTransactions":[{"status":99}]}],"new":[{"a":1}]}"#,
            SubscriptionStatuses.init)
        #expect(statuses.environment == StoreEnvironment(rawValue: "Moon"))
        #expect(statuses.groups.first?.lastTransactions.first?.status?.rawValue == 99)
        #expect(try read(#"{"status":7}"#, OrderLookUp.init).status?.rawValue == 7)
        let attempt = try read(
            #"{"attemptDate":1780000000123.4567,"sendAttemptResult":"SSL_ISSUE","new":null}"#, SendAttempt.init)
        #expect(attempt.result?.rawValue == "SSL_ISSUE")
        #expect(abs((attempt.date?.timeIntervalSince1970 ?? 0) - 1_780_000_000.1234567) < 0.000_01)
        let past = try read(#"{"effectiveDate":-62135769600000}"#, ExtendedRenewalDate.init)
        #expect((past.effectiveDate ?? .now) < Date(timeIntervalSince1970: 0))
    }

    @Test(arguments: kinds) func `any field may be missing or null, any other may be there`(_ kind: Kind) throws {
        let whole = try kind.value(of: kind.sample)
        for place in kind.sample.places where place.isMember {
            let without = try kind.value(of: kind.sample.replacing(place, with: nil))
            let null = try kind.value(of: kind.sample.replacing(place, with: .null))
            // The token counts only where there are more pages.
            #expect(without == null && (without != whole || place.key == "paginationToken"), "\(place)")
        }
        for place in [JSON.Place()] + kind.sample.places {
            guard case .object(var members) = kind.sample[place] else { continue }
            members["new"] = .array([.object(["x": .number(0.5)])])
            #expect(try kind.value(of: kind.sample.replacing(place, with: .object(members))) == whole, "\(place)")
        }
    }

    @Test(arguments: kinds) func `F15: a value of another type is read or unknown, and only a list is needed`(
        _ kind: Kind
    ) throws {
        let values: [JSON] = [
            .bool(true), .bool(false), .integer(7), .number(0.5), .string("7"), .string("x"), .array([]), .object([:]),
        ]
        for place in kind.sample.places {
            for value in values {
                let changed = kind.sample.replacing(place, with: value)
                if Self.isNeeded(kind.sample, place, value) {
                    #expect(throws: FieldMismatch.self, "\(place) \(value)") { try kind.value(of: changed) }
                } else {
                    _ = try kind.value(of: changed)
                }
            }
        }
    }

    /// Whether signed data could be lost with this value.
    private static func isNeeded(_ sample: JSON, _ place: JSON.Place, _ value: JSON) -> Bool {
        guard !place.description.contains("sendAttempts") else { return false }
        let isTexts = place.description.contains("signedTransactions")
        switch (sample[place], value) {
        case (.array?, .array): return false
        case (.array?, .string), (.array?, .integer): return !isTexts
        case (.array?, .object): return isTexts
        case (.array?, _): return true
        case (.string?, .string), (.string?, .integer): return false
        case (.string?, _): return !place.isMember
        case (.object?, .object): return false
        case (.object?, _): return true
        default: return false
        }
    }

    @Test func `a number as text and text as a number are the same answer`() throws {
        let history = Self.kinds[0]
        for (place, value) in [
            ("appAppleId", JSON.string("9007199254740993")), ("hasMore", .integer(0)), ("hasMore", .string("false")),
        ] {
            var body = try #require(history.sample.object)
            body[place] = value
            #expect(try history.value(of: .object(body)) == history.value(of: history.sample), "\(place)")
        }
        let one = try HistoryPage(["signedTransactions": .string("a.b.c"), "revision": .integer(7)])
        #expect(one.signedTransactions == ["a.b.c"] && one.revision == "7")
        #expect(try HistoryPage(["signedTransactions": .string(#"["a","b"]"#)]).signedTransactions == ["a", "b"])
    }

    /// Goal: for any bytes a reader returns an error or a value. Method: samples damaged at random, in their bytes and
    /// in their structure.
    @Test func `damaged answers do no harm`() throws {
        var random = SeededRandom(announcing: "answers of the App Store Server API")
        let odd: [JSON] = [
            .integer(.max), .integer(.min), .number(1e300), .number(-1e300), .number(0.5), .number(9.3e18), .string(""),
            .null, .bool(false), .array([.null]), .object(["": .null]),
        ]
        var read = 0
        var refused = 0
        for _ in 0..<4_000 {
            let kind = try #require(Self.kinds.randomElement(using: &random))
            var body = kind.sample
            for _ in 0...Int.random(in: 0...2, using: &random) {
                guard let place = body.places.randomElement(using: &random) else { break }
                body = body.replacing(place, with: odd.randomElement(using: &random))
            }
            for bytes in [body.bytes, random.damage(body.bytes)] {
                guard let object = try? JSON(parsing: bytes).object else { continue }
                if (try? kind.read(object)) != nil { read += 1 } else { refused += 1 }
            }
        }
        #expect(read > 0 && refused > 0, "seed \(random.seed)")
    }

    private static let unreadableLists = #"{"signedTransactions":{},"data":7,"notificationHistory":1}"#

    /// The same through the client: an answer that cannot be read is garbage, and the client asks again.
    @Test func `an answer that cannot be read is garbage`() async throws {
        for answer in [
            Self.unreadableLists,
            "[]", "", "null", "{", #"{"a":1,"a":2}"#,
        ] {
            try await LocalApple.serving({ _ in .json(answer) }) { apple, http in
                let client = try await ServerAPILab.client(http, apple.url)
                for exchange in ServerAPIRequestTests.exchanges {
                    // Calls whose answer is the status alone.
                    let isRead = ![
                        .finishTransaction, .setAppAccountToken, .sendConsumption, .sendConsumptionV1,
                    ].contains(exchange.endpoint)
                    // Answers without a list, and without a field that is needed.
                    let isLenient = [
                        .extendRenewalDate, .extendRenewalDates, .renewalDateExtension, .testNotification,
                    ].contains(exchange.endpoint)
                    if answer == Self.unreadableLists, isLenient { continue }
                    let before = apple.requests.count
                    var failure: AppStoreFailure?
                    do { try await exchange.ask(client) } catch { failure = try #require(error as? AppStoreFailure) }
                    #expect(failure?.error == (isRead ? .garbage : nil), "\(exchange.path) \(answer)")
                    #expect(failure?.isRetryable != false)
                    #expect(apple.requests.count == before + 1)
                }
            }
        }
    }
}

// MARK: - Places in a JSON value

extension JSON {
    /// The path from a value to one inside it.
    struct Place: CustomStringConvertible {
        enum Step {
            case key(String)
            case index(Int)
        }

        var steps: [Step] = []

        var key: String? { if case .key(let key)? = steps.last { key } else { nil } }
        var isMember: Bool { key != nil }
        var description: String { steps.map { "\($0)" }.joined(separator: "/") }

        func then(_ step: Step) -> Place { Place(steps: steps + [step]) }
    }

    /// The places of every value inside this one.
    var places: [Place] { places(at: Place()) }

    private func places(at place: Place) -> [Place] {
        let inside: [(Place, JSON)] =
            switch self {
            case .object(let members):
                members.sorted { $0.key < $1.key }.map { (place.then(.key($0.key)), $0.value) }
            case .array(let elements): elements.enumerated().map { (place.then(.index($0.offset)), $0.element) }
            default: []
            }
        return inside.flatMap { [$0.0] + $0.1.places(at: $0.0) }
    }

    subscript(_ place: Place) -> JSON? {
        place.steps.reduce(self as JSON?) { value, step in
            switch (step, value) {
            case (.key(let key), .object(let members)?): members[key]
            case (.index(let index), .array(let elements)?): elements[index]
            default: nil
            }
        }
    }

    /// This value with another one at a place, or with the place removed.
    func replacing(_ place: Place, with value: JSON?) -> JSON {
        guard let step = place.steps.first else { return value ?? .null }
        let rest = Place(steps: Array(place.steps.dropFirst()))
        let isLast = rest.steps.isEmpty
        switch (step, self) {
        case (.key(let key), .object(var members)):
            members[key] = isLast ? value : members[key]?.replacing(rest, with: value)
            return .object(members)
        case (.index(let index), .array(var elements)):
            if isLast, value == nil {
                elements.remove(at: index)
            } else {
                elements[index] = isLast ? value ?? .null : elements[index].replacing(rest, with: value)
            }
            return .array(elements)
        default: return self
        }
    }
}

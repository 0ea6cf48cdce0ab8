import Foundation
import Ledger
import Testing

@testable import Adversary

/// Goal: the audit of what a receiver got notices every error that it is there for; if it did not, the drills of
/// deliveries would be worthless (B8).
/// Method: three events of two users as values, and what a receiver got of them, right and with one error at a time.
@Suite struct DeliveryAuditTests {
    private static let ids = (0..<3).map { _ in UUID() }

    /// Two events of `a`, and between them one of `b`.
    private static let told = [("a", 1, 1), ("b", 2, 1), ("a", 1, 2)].enumerated().map { place, event in
        DeliveryAudit.Told(
            id: ids[place], type: "purchase.granted", userID: event.0, stream: event.1, sequence: event.2,
            cursor: EventCursor(place: 100 + place, id: 1))
    }

    /// A webhook with the event at this place, as a receiver that works gets it.
    private static func webhook(
        _ place: Int, user: String? = nil, sequence: Int? = nil, previous: UUID? = nil, cursor: String? = nil,
        refusal: String? = nil, status: Int? = 204
    ) -> EventReceiver.Received {
        let before = place == 2 ? ids[0] : nil
        return EventReceiver.Received(
            id: ids[place].uuidString.lowercased(), type: "purchase.granted", userID: user ?? told[place].userID,
            sequence: sequence ?? told[place].sequence, previousID: (previous ?? before)?.uuidString,
            cursor: cursor ?? "0-0", attempt: 1, isReplay: false, refusal: refusal, at: .now, status: status)
    }

    private static func audit(_ received: EventReceiver.Received...) -> DeliveryAudit {
        var audit = DeliveryAudit()
        audit.compare(received, with: told)
        return audit
    }

    private static func defect(_ received: EventReceiver.Received...) -> String {
        var audit = DeliveryAudit()
        audit.compare(received, with: told)
        return audit.defects.joined(separator: "; ")
    }

    @Test("Nothing is wrong where each user's events came in order, users in any order, some of them twice")
    func right() {
        let audit = Self.audit(
            Self.webhook(1), Self.webhook(0, status: 500), Self.webhook(0), Self.webhook(0), Self.webhook(2),
            Self.webhook(2, cursor: "102-1"))
        #expect(audit.defects == [])
        #expect(audit.repeats == 2)
        #expect(audit.refusals == 0)
    }

    @Test("An event that was never taken is lost, whatever came of it")
    func lost() {
        #expect(Self.defect(Self.webhook(0), Self.webhook(1)).contains("1 events were never taken"))
        let refused = Self.defect(Self.webhook(0), Self.webhook(1), Self.webhook(2, status: 500))
        #expect(refused.contains("1 events were never taken"))
    }

    @Test("An event that came before the one before it was taken is an inversion")
    func inversion() {
        for first in [Self.webhook(2), Self.webhook(0, status: nil)] {
            let defect = Self.defect(first, Self.webhook(2), Self.webhook(0), Self.webhook(1))
            #expect(defect.contains("came before the event before them was taken"), "\(defect)")
        }
    }

    @Test("A cursor may stand at the last event before the first one that is missing, and no further")
    func cursor() {
        let good = Self.defect(Self.webhook(0), Self.webhook(1, cursor: "100-1"), Self.webhook(2, cursor: "101-1"))
        #expect(good == "")
        for bad in ["101-1", "102-1", "200-0"] {
            let defect = Self.defect(Self.webhook(0), Self.webhook(1, cursor: bad), Self.webhook(2))
            #expect(defect.contains("a cursor behind an event that was not taken"), "\(bad): \(defect)")
        }
        #expect(Self.defect(Self.webhook(0), Self.webhook(1, cursor: "x"), Self.webhook(2)).contains("no cursor"))
    }

    @Test("Another user, another number, another event before, a strange id and a refusal are each told")
    func details() {
        let (first, second) = (Self.webhook(0), Self.webhook(1))
        #expect(Self.defect(first, second, Self.webhook(2, user: "b")).contains("for another user"))
        #expect(Self.defect(first, second, Self.webhook(2, sequence: 3)).contains("another number"))
        #expect(Self.defect(first, second, Self.webhook(2, previous: Self.ids[1])).contains("another event before"))
        let refused = Self.audit(first, second, Self.webhook(2, refusal: "signature", status: 401), Self.webhook(2))
        #expect(refused.defects == [] && refused.refusals == 1)
        let stranger = EventReceiver.Received(
            id: UUID().uuidString, type: "purchase.granted", userID: "a", sequence: 1, previousID: nil, cursor: "0-0",
            attempt: 1, isReplay: false, refusal: nil, at: .now, status: 204)
        #expect(Self.defect(first, second, Self.webhook(2), stranger).contains("the database does not have them"))
    }

    @Test("A number of a user that is left out is told")
    func gap() {
        var audit = DeliveryAudit()
        let told = [Self.told[0], Self.told[1]].enumerated().map { place, event in
            DeliveryAudit.Told(
                id: event.id, type: event.type, userID: "a", stream: 1, sequence: 1 + 2 * place, cursor: event.cursor)
        }
        audit.compare([], with: told)
        #expect(audit.defects.contains { $0.contains("does not follow the one before") }, "\(audit.defects)")
    }
}

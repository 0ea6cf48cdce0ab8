import Crypto
import Foundation
import Purchases
import Testing

/// Goal: one proof of one user has one id, and every other submission has another id. Method: known values computed by
/// hand, every field changed alone, and lists of parts that read alike when they are joined.
@Suite struct DerivedIDTests {
    /// The fields of a submission, to be changed one by one.
    private struct Fields {
        var appID = "game"
        var userID: String? = "u1"
        var orderID: String? = "o1"
        var proof = Proof.signedTransaction("a.b.c")
        var transactionID: String? = "1"
        var originalTransactionID: String? = "2"
        var isVouched = false
        var details = #"{"item":"x"}"#

        var submission: Submission {
            Submission(
                appID: appID, userID: userID, orderID: orderID, proof: proof, transactionID: transactionID,
                originalTransactionID: originalTransactionID, isVouched: isVouched, details: details)
        }
    }

    private static let submission = Fields().submission

    private static func changed(_ change: (inout Fields) -> Void) -> UUID {
        var fields = Fields()
        change(&fields)
        return fields.submission.receiptID
    }

    @Test("S1-2, P5: the same proof of the same user is the same receipt, whatever else was sent with it")
    func same() {
        let id = Self.submission.receiptID
        #expect(Self.changed { _ in } == id)
        #expect(Self.changed { $0.details = "{}" } == id)
        #expect(Self.changed { $0.isVouched = true } == id)
        #expect(Self.changed { $0.originalTransactionID = "3" } == id, "the proof says it")
        #expect(Self.changed { $0.orderID = "o2" } == id)
        #expect(Self.changed { $0.orderID = nil } == id)
        #expect(Self.changed { $0.transactionID = "9" } == id)
        #expect(Self.changed { $0.transactionID = nil } == id)
        let question = Self.changed { $0.proof = .identifier }
        #expect(
            question == Self.changed { ($0.proof, $0.orderID) = (.identifier, "o2") }, "an order is no other question")
    }

    @Test(
        "app, user, proof and, where nobody names the user, the order make another receipt; without a proof the ids do")
    func different() {
        let ids = [
            Self.submission.receiptID, Self.changed { $0.appID = "other" }, Self.changed { $0.userID = "u2" },
            Self.changed { $0.userID = nil }, Self.changed { ($0.userID, $0.orderID) = (nil, "o2") },
            // The poster is a user or an order: an order with the same name as a user is another poster.
            Self.changed { ($0.userID, $0.orderID) = (nil, "u1") },
            Self.changed { $0.proof = .signedTransaction("a.b.d") }, Self.changed { $0.proof = .receipt("a.b.c") },
            Self.changed { $0.proof = .identifier },
            Self.changed { ($0.proof, $0.transactionID) = (.identifier, "9") },
            Self.changed { ($0.proof, $0.transactionID) = (.identifier, nil) },
            Self.changed {
                $0.proof = .identifier
                $0.originalTransactionID = "9"
            },
            Self.changed {
                $0.proof = .identifier
                $0.isVouched = true
            },
        ]
        #expect(Set(ids).count == ids.count)
    }

    @Test("each part has its length before it: no two lists read alike")
    func ambiguity() {
        let lists: [[String]] = [
            ["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], ["", "", "abc"], [], [""], ["", ""],
            ["a\u{0}b"], ["a", "b"], ["é"], ["e\u{301}"], ["\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{1}a"], ["a", ""],
        ]
        #expect(Set(lists.map(DerivedID.make)).count == lists.count)
        let joined = [("game", "1u"), ("game1", "u")].map { app, user in
            Submission(appID: app, userID: user, proof: .receipt("r")).receiptID
        }
        #expect(joined[0] != joined[1])
    }

    @Test("RFC 9562, 5.8: the first 16 bytes of SHA-256 with the bits of version 8 and of the variant")
    func bits() throws {
        for (parts, input) in [
            ([], []), (["a"], [0, 0, 0, 0, 0, 0, 0, 1, 97]), (["", "b"], [UInt8](repeating: 0, count: 15) + [1, 98]),
        ] as [([String], [UInt8])] {
            var expected = Array(SHA256.hash(data: input).prefix(16))
            expected[6] = expected[6] & 0x0F | 0x80
            expected[8] = expected[8] & 0x3F | 0x80
            let uuid = DerivedID.make(parts).uuid
            #expect(withUnsafeBytes(of: uuid) { Array($0) } == expected)
        }
        for number in 0..<500 {
            let text = DerivedID.make([String(number)]).uuidString
            let digits = Array(text)
            #expect(digits[14] == "8")
            #expect("89AB".contains(digits[19]))
        }
    }

    @Test("a grant made again after a restored backup is the same event")
    func event() throws {
        let id = DerivedID.event(appID: "game", transactionID: "2000000000000001", type: .purchaseGranted)
        // App backends were once given this value: it must never change.
        #expect(id.uuidString == "1B0F3B16-01A1-86E2-AC2D-127EC8406CAB")
        #expect(id == DerivedID.make(["game", "2000000000000001", "purchase.granted", ""]))
        let others = [
            DerivedID.event(appID: "game2", transactionID: "2000000000000001", type: .purchaseGranted),
            DerivedID.event(appID: "game", transactionID: "2000000000000002", type: .purchaseGranted),
            DerivedID.event(appID: "game", transactionID: "2000000000000001", type: .purchaseRevoked),
        ]
        #expect(Set(others + [id]).count == others.count + 1)
    }
}

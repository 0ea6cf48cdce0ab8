import Purchases
import Testing

/// Goal: a client is told to finish only when its copy can have no further use (P2, P37). Method: every state with
/// every reason, with and without Apple's facts stored, against the rule written a second time.
@Suite struct SafeToFinishTests {
    private static let states = ReceiptState.allCases.map(\.rawValue) + ["open", "unknown", ""]

    @Test("P2: every state, every reason", arguments: [true, false], [true, false])
    func table(hasFacts: Bool, finishHeld: Bool) {
        for state in Self.states {
            for reason in [String?.none] + Reason.allCases.map(\.rawValue) + ["something_new"] {
                let expected =
                    switch (state, reason) {
                    case ("granted", _), ("already_granted", _): true
                    case ("rejected", "refunded"), ("rejected", "withdrawn"), ("rejected", "historical"),
                        ("rejected", "shared_not_served"):
                        true
                    // Another post settles it, and nobody could make that post after the purchase was finished.
                    case ("held", "foreign_order"), ("held", "foreign_record"), ("held", "foreign_token"),
                        ("held", "token_disputed"), ("held", "user_placeholder"):
                        false
                    // Of a newer version: nobody knows here what settles it.
                    case ("held", "something_new"): false
                    case ("held", _): hasFacts && finishHeld
                    default: false
                    }
                let told = SafeToFinish.judge(state: state, reason: reason, hasFacts: hasFacts, finishHeld: finishHeld)
                #expect(told == expected, "\(state) \(reason ?? "-")")
                // Another user has the purchase by less than proof: it is not safe to finish for a day.
                let disputed = SafeToFinish.judge(
                    state: state, reason: reason, hasFacts: hasFacts, finishHeld: finishHeld, isDisputed: true)
                #expect(disputed == (expected && !["granted", "already_granted"].contains(state)))
            }
        }
    }

    @Test(
        "P2, P17: a rejection that may be our own fault keeps the client's copy",
        arguments: [
            Reason.malformed, .algorithm, .chainLength, .certificate, .untrustedRoot, .missingOID, .expired, .signature,
            .unsigned, .wrongApp, .wrongEnvironment, .notAuthenticated, .accountNotFound, .appleRefused, .notFound,
            .invalidTransactionID, .takenOver, .certificateRevoked,
        ])
    func ourFault(reason: Reason) {
        #expect(!SafeToFinish.judge(state: "rejected", reason: reason.rawValue, hasFacts: true))
    }

    @Test("ended states are exactly those that nothing leaves")
    func ended() {
        #expect(ReceiptState.allCases.filter(\.isEnded) == [.granted, .alreadyGranted, .rejected])
    }

    @Test("a proof is stored and read back as it was", arguments: Proof.Kind.allCases)
    func proof(kind: Proof.Kind) {
        let proof = Proof(kind: kind, payload: "payload")
        #expect(proof.kind == kind)
        #expect(proof.payload == (kind == .identifier ? "" : "payload"))
    }
}

import Purchases
import Testing

/// Goal: whatever becomes of a purchase, the player is told one true sentence (B14). Method: every state with every
/// reason, compared with what the sentence must and must not say.
@Suite struct PlayerSentenceTests {
    private static let all: [(ReceiptState, Reason?, PlayerSentence)] = ReceiptState.allCases.flatMap { state in
        ([nil] + Reason.allCases.map { Optional($0) }).map { (state, $0, PlayerSentence(state, $0)) }
    }

    @Test("B14: every state, every reason: one sentence in both languages, without internal terms")
    func table() {
        let words = Reason.allCases.map(\.rawValue).filter { $0.contains("_") }
        for (state, reason, sentence) in Self.all + [(.received, nil, .orderOpen), (.received, nil, .unclaimed)] {
            let about: Comment = "\(state) \(reason?.rawValue ?? "-")"
            #expect(sentence.zh.hasSuffix("。") && sentence.zh.filter { $0 == "。" }.count == 1, about)
            #expect(sentence.en.hasSuffix(".") && sentence.en.filter { $0 == "." }.count == 1, about)
            #expect(sentence.zh.contains { !$0.isASCII }, about)
            #expect(sentence.en.allSatisfy { $0.isASCII }, about)
            #expect(!words.contains { sentence.en.contains($0) || sentence.zh.contains($0) }, about)
        }
    }

    @Test("what somebody else shares is called shared, unless there is more to say")
    func shared() {
        for state in [ReceiptState.granted, .alreadyGranted] {
            let sentence = PlayerSentence(state, nil, isShared: true)
            #expect(sentence.en.contains("shared with you") && sentence.zh.contains("共享"))
            #expect(!sentence.en.contains("credited"))
        }
        #expect(PlayerSentence(.granted, .withdrawn, isShared: true) == PlayerSentence(.granted, .withdrawn))
        #expect(PlayerSentence(.held, .sandbox, isShared: true) == PlayerSentence(.held, .sandbox))
    }

    @Test("only what is granted is called credited, and what is open is never called failed")
    func truth() {
        for (state, reason, sentence) in Self.all {
            let about: Comment = "\(state) \(reason?.rawValue ?? "-"): \(sentence.en)"
            let isCredited = sentence.en.contains("credited to your account")
            switch state {
            case .granted:
                #expect(
                    isCredited == !([.unconfirmed, .ownedByAnotherUser] + Reason.takingBack).contains(reason), about)
            case .alreadyGranted:
                // The former system gave it, and this server did not.
                let isElsewhere = [.ownedByAnotherUser, .transferred, .imported].contains(reason)
                #expect(isCredited != isElsewhere, about)
                #expect(sentence.en.contains("our former system") == (reason == .imported), about)
            case .received, .held, .parked, .rejected: #expect(!isCredited, about)
            }
            let isWithoutReason = state == .parked || state == .granted || state == .alreadyGranted
            let saysAnother =
                switch reason {
                case .ownedByAnotherUser: state != .parked
                case .transferred: state == .alreadyGranted || !isWithoutReason
                case .foreignOrder, .foreignRecord, .tokenDisputed, .transferReview: !isWithoutReason
                default: false
                }
            #expect(saysAnother == sentence.en.contains("another account"), about)
        }
        for reason in [Reason.appleUnavailable, .appleAnswer] {
            for state in [ReceiptState.received, .parked] {
                #expect(PlayerSentence(state, reason).en.contains("you need not pay again"))
                #expect(PlayerSentence(state, reason).zh.contains("请勿重复付款"))
            }
        }
        // A rejection that may be our own mistake is not final.
        for reason in Reason.allCases
        where !SafeToFinish.judge(state: "rejected", reason: reason.rawValue, hasFacts: true) {
            guard Self.rejections.contains(reason) else { continue }
            #expect(PlayerSentence(.rejected, reason).en.contains("if you paid, please contact support"))
        }
    }

    private static let rejections: [Reason] = [
        .malformed, .algorithm, .chainLength, .certificate, .untrustedRoot, .missingOID, .expired, .signature,
        .unsigned,
        .certificateRevoked, .wrongApp, .wrongEnvironment, .notAuthenticated, .accountNotFound, .appleRefused,
        .notFound,
        .invalidTransactionID,
    ]
}

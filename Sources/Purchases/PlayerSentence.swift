/// What a player is told about a purchase: one true sentence, in Chinese and in English (B14).
///
/// It promises nothing that is not decided, names nobody, and says nothing of how we work inside. A reason without a
/// sentence does not compile.
package struct PlayerSentence: Sendable, Equatable {
    package let zh: String
    package let en: String

    package init(zh: String, en: String) {
        self.zh = zh
        self.en = en
    }

    /// The sentence for a receipt, or for one purchase in it. A purchase is `received` or `parked` while its outcome is
    /// open.
    ///
    /// - Parameters:
    ///   - reason: nil where there is none, or one that a newer version has stored.
    ///   - isShared: whether somebody else bought it and shares it with the user.
    package init(_ state: ReceiptState, _ reason: Reason?, isShared: Bool = false) {
        self =
            switch state {
            case .granted: reason.flatMap(Self.grantedBut) ?? (isShared ? Self.shared : Self.granted)
            case .alreadyGranted: reason.flatMap(Self.grantedTo) ?? (isShared ? Self.shared : Self.grantedBefore)
            case .received: reason.map(Self.of) ?? Self.received
            case .held: reason.map(Self.of) ?? Self.held
            case .parked: reason.flatMap(Self.parkedFor) ?? Self.parked
            case .rejected: reason.map(Self.of) ?? Self.of(.signature)
            }
    }

    /// An order that no purchase has come for.
    package static let orderOpen = PlayerSentence(
        zh: "订单已创建,我们还没有收到这笔订单的付款凭证。",
        en: "Your order is placed; no purchase for it has reached us yet.")

    /// A purchase that Apple told us of, and that nobody has posted.
    package static let unclaimed = PlayerSentence(
        zh: "Apple 记录了这笔购买,但还没有账号提交它,请登录后在购买时使用的设备上打开应用。",
        en:
            "Apple knows this purchase, but no account has sent it yet: please log in and open the app on the device you paid with."
    )

    private static let granted = PlayerSentence(
        zh: "这笔购买已完成,并已记入您的账号。", en: "Your purchase is complete and credited to your account.")
    private static let grantedBefore = PlayerSentence(
        zh: "这笔购买之前已经记入您的账号。", en: "This purchase was credited to your account before.")
    private static let shared = PlayerSentence(
        zh: "这项购买由他人与您共享,您可以使用它,但不会另外发放商品。",
        en: "This purchase is shared with you by whoever bought it: you may use it, and it brings no goods of its own.")
    private static let received = PlayerSentence(
        zh: "我们已收到您的购买凭证,正在核实,通常只需几秒钟。",
        en: "We have your purchase and are checking it, which usually takes seconds.")
    private static let held = PlayerSentence(
        zh: "您的购买凭证已安全保存,需要人工处理,请勿重复付款。",
        en: "Your purchase is stored and waits for our staff to look at it; please do not pay again.")
    private static let parked = PlayerSentence(
        zh: "App Store 长时间没有确认这笔购买,凭证已安全保存,我们会继续查询,请勿重复付款。",
        en:
            "The App Store has not confirmed this purchase for a long time; it is stored, we go on asking, and you need not pay again."
    )

    /// The sentence for a purchase that was granted before to another user, or by the former system.
    private static func grantedTo(_ reason: Reason) -> PlayerSentence? {
        switch reason {
        case .ownedByAnotherUser, .transferred, .imported: of(reason)
        default: nil
        }
    }

    /// The sentence for a grant with a reason beside it.
    private static func grantedBut(_ reason: Reason) -> PlayerSentence? {
        if reason == .unconfirmed || reason == .ownedByAnotherUser { return of(reason) }
        if reason == .refunded {
            return PlayerSentence(
                zh: "Apple 已为这笔购买退款,相应的商品可能会被收回。",
                en: "Apple has refunded this purchase, so what it brought may be taken back.")
        }
        if reason == .withdrawn {
            return PlayerSentence(
                zh: "与您共享这项购买的人或组织已停止共享,这项权益已结束。",
                en: "Whoever shared this purchase with you has stopped sharing it, so it is over.")
        }
        guard Reason.takingBack.contains(reason) else { return nil }
        return PlayerSentence(
            zh: "Apple 没有确认这笔购买,先行发放的商品可能会被收回。",
            en: "Apple did not confirm this purchase, so what was given ahead of it may be taken back.")
    }

    /// The sentence for a receipt that is parked not only because Apple gave no answer.
    private static func parkedFor(_ reason: Reason) -> PlayerSentence? {
        switch reason {
        case .neverWorked, .unconfirmed: of(reason)
        default: nil
        }
    }

    /// The sentence for a reason.
    private static func of(_ reason: Reason) -> PlayerSentence {
        switch reason {
        // Held.
        case .productUnknown:
            PlayerSentence(
                zh: "这笔购买已核实并保存,对应的商品尚未在我们这里配置,配置完成后会自动发放。",
                en:
                    "Your purchase is verified and stored; its product is not set up here yet, and it goes on by itself once it is."
            )
        case .itemUnknown:
            PlayerSentence(
                zh: "这笔购买已核实并保存,但我们还不知道您买的是哪一件商品;请在应用里重新提交,或联系客服。",
                en:
                    "Your purchase is verified and stored, but we do not know yet which item it was for: please open the app again, or contact support."
            )
        case .sandbox:
            PlayerSentence(
                zh: "这是一笔测试环境的购买,没有实际扣款,暂不发放。",
                en: "This is a test purchase, for which no money was taken; it is not credited for now.")
        case .beforeCutover:
            PlayerSentence(
                zh: "这笔购买发生在系统切换之前,需要人工核对当时是否已经发放。",
                en:
                    "This purchase was made before a change of our systems; our staff has to check whether it was credited then."
            )
        case .review:
            PlayerSentence(
                zh: "这笔购买已保存,需要人工核对,请勿重复付款。",
                en: "Your purchase is stored and waits for our staff to check it; please do not pay again.")
        case .purchaseAhead:
            PlayerSentence(
                zh: "这笔购买的时间晚于我们的时钟,我们会自动再次核实。",
                en: "The date of this purchase is ahead of our clock; we check it again by ourselves.")
        case .possessionMissing:
            PlayerSentence(
                zh: "我们只收到了交易编号,请在购买时使用的设备上打开应用,以便提交 Apple 的凭证。",
                en:
                    "We have only the number of this purchase: please open the app on the device you paid with, so that it can send Apple's proof."
            )
        case .noTransactionYet:
            PlayerSentence(
                zh: "应用提交的凭证里还没有购买记录,请在应用里恢复购买,或稍后再试。",
                en:
                    "The record that the app sent holds no purchase yet: please restore purchases in the app, or try again later."
            )
        case .orderUnknown, .userPlaceholder, .unclaimed, .unclaimedYet:
            PlayerSentence(
                zh: "我们还不知道这笔购买属于哪个账号,请登录后重新打开应用。",
                en: "We do not know yet which account this purchase belongs to: please log in and open the app again.")
        case .foreignToken:
            PlayerSentence(
                zh: "这笔购买带有另一个账号的标识,需要人工核对。",
                en: "This purchase carries the mark of an account that we do not know; our staff has to look at it.")
        case .foreignOrder:
            PlayerSentence(
                zh: "这笔购买提交时附带了另一个账号的订单,需要人工核对;如果它属于您的另一个账号,请登录那个账号后重新打开应用。",
                en:
                    "This purchase was sent with an order of another account: if that is yours too, please log in there and open the app again; otherwise our staff has to look at it."
            )
        case .foreignRecord:
            PlayerSentence(
                zh: "这笔购买的充值记录写的是另一个账号,需要人工核对;如果它属于您的另一个账号,请登录那个账号后重新打开应用。",
                en:
                    "The record of this purchase names another account: if that is yours too, please log in there and open the app again; otherwise our staff has to look at it."
            )
        case .tokenDisputed:
            PlayerSentence(
                zh: "这笔购买的标识之前用于另一个账号;如果那也是您的账号,请登录那个账号后重新打开应用,否则一天后会继续处理。",
                en:
                    "The mark on this purchase was used by another account before: if that is yours too, please log in there and open the app again; otherwise we go on by ourselves after a day."
            )
        case .transferReview:
            PlayerSentence(
                zh: "这项订阅或商品目前属于另一个账号,是否转到您的账号需要人工核对。",
                en:
                    "This belongs to another account at present; our staff has to look at it before it can become yours."
            )
        case .credentialsMissing:
            PlayerSentence(
                zh: "您的购买凭证已保存,我们的系统暂时无法向 Apple 查询它,修复后会自动继续。",
                en:
                    "Your purchase is stored; our system is not set up to ask Apple about it yet, and goes on by itself once it is."
            )
        case .appUnknown:
            PlayerSentence(
                zh: "您的购买凭证已保存,我们的系统尚未配置这个应用,配置完成后会自动继续。",
                en:
                    "Your purchase is stored; our system is not set up for this app yet, and goes on by itself once it is."
            )
        case .idCollision:
            PlayerSentence(
                zh: "这笔购买的编号与另一条记录相同,需要人工核对。",
                en: "The number of this purchase is that of another record too; our staff has to look at it.")
        case .shadow:
            PlayerSentence(
                zh: "这笔购买已核实并保存,目前仍由原有系统发放商品。",
                en: "Your purchase is verified and stored; its goods are still given by our present system.")
        // Already granted.
        case .imported:
            PlayerSentence(
                zh: "这笔购买的商品已由原有系统发放。", en: "The goods of this purchase were given by our former system.")
        case .ownedByAnotherUser:
            PlayerSentence(
                zh: "这笔购买已记入另一个账号;如果您有多个账号,请登录其他账号查看。",
                en: "This purchase was credited to another account; if you have several, please look into the others.")
        case .transferred:
            PlayerSentence(
                zh: "这项订阅或商品已从另一个账号转到您的账号;当时发放的物品不会重复发放。",
                en:
                    "This has become yours; it was another account's before, and what came with it then is not given again."
            )
        // Rejected.
        case .refunded:
            PlayerSentence(
                zh: "Apple 已为这笔购买退款,因此没有发放。",
                en: "Apple has refunded this purchase, so nothing was credited for it.")
        case .withdrawn:
            PlayerSentence(
                zh: "与您共享这项购买的人或组织已停止共享,因此没有发放。",
                en: "Whoever shared this purchase with you has stopped sharing it, so nothing was credited for it.")
        case .sharedNotServed:
            PlayerSentence(
                zh: "这是他人与您共享的购买,在这个应用里不发放。",
                en: "Somebody else bought this and shares it with you; this app gives nothing for what is shared.")
        case .historical:
            PlayerSentence(
                zh: "这笔购买发生在本系统启用之前,由之前的系统负责。",
                en: "This purchase was made before this system began, and was the business of the one before it.")
        case .malformed, .algorithm, .chainLength, .certificate, .untrustedRoot, .missingOID, .expired, .signature,
            .unsigned, .certificateRevoked:
            PlayerSentence(
                zh: "应用提交的凭证没有通过验证;如果您已付款,请联系客服。",
                en: "The proof that the app sent could not be verified; if you paid, please contact support.")
        case .wrongApp:
            PlayerSentence(
                zh: "这份凭证属于另一个应用;如果您已付款,请联系客服。",
                en: "The proof that was sent belongs to another app; if you paid, please contact support.")
        case .wrongEnvironment:
            PlayerSentence(
                zh: "这份凭证来自这里不受理的 App Store 环境;如果您已付款,请联系客服。",
                en:
                    "The proof that was sent is of an App Store environment that is not served here; if you paid, please contact support."
            )
        case .notAuthenticated, .accountNotFound, .appleRefused:
            PlayerSentence(
                zh: "Apple 没有接受这份凭证;如果您已付款,请联系客服。",
                en: "Apple did not accept the proof that was sent; if you paid, please contact support.")
        case .notFound, .invalidTransactionID:
            PlayerSentence(
                zh: "Apple 没有找到这个编号的购买;如果您已付款,请联系客服。",
                en: "Apple knows no purchase of this number; if you paid, please contact support.")
        case .takenOver:
            PlayerSentence(
                zh: "这份凭证里没有购买记录,您之后提交的凭证已取代它。",
                en: "This record held no purchase, and a later one of yours has taken its place.")
        // Open.
        case .appleUnavailable, .appleAnswer:
            PlayerSentence(
                zh: "App Store 暂时没有给出答复,您的购买凭证已安全保存,我们会自动重试,请勿重复付款。",
                en:
                    "The App Store gives no answer at the moment; your purchase is stored, we go on asking by ourselves, and you need not pay again."
            )
        case .notFoundYet:
            PlayerSentence(
                zh: "Apple 还查不到这笔购买,我们会自动再次查询。",
                en: "Apple does not show this purchase yet; we ask again by ourselves.")
        case .historyPending:
            PlayerSentence(
                zh: "您的购买记录较多,我们正在逐一向 Apple 核实。",
                en: "There are many purchases to check with Apple; yours are checked one after the other.")
        case .clockAhead:
            PlayerSentence(
                zh: "凭证的签名时间晚于我们的时钟,我们会自动再次核实。",
                en: "The proof was signed at a time ahead of our clock; we check it again by ourselves.")
        case .certificateStatusUnknown:
            PlayerSentence(
                zh: "暂时无法确认 Apple 证书的状态,您的购买凭证已安全保存,我们会自动重试。",
                en:
                    "The state of Apple's certificates cannot be told at the moment; your purchase is stored, and we go on by ourselves."
            )
        case .appleBudget:
            PlayerSentence(
                zh: "目前待核实的购买较多,您的购买正在排队,无需任何操作。",
                en: "Many purchases are being checked at the moment; yours is stored and comes in its turn.")
        case .halted:
            PlayerSentence(
                zh: "我们暂停了核实,您的购买凭证已安全保存,恢复后会自动继续。",
                en:
                    "Checking is paused on our side at the moment; your purchase is stored and goes on by itself afterwards."
            )
        case .catalogueUnknown:
            PlayerSentence(
                zh: "我们正在更新商品目录,您的购买凭证已安全保存,稍后会自动继续。",
                en: "What we sell is being updated; your purchase is stored and goes on by itself in a moment.")
        case .unconfirmed:
            PlayerSentence(
                zh: "商品已先行发放到您的账号,这笔购买还在等待 Apple 确认。",
                en: "The goods were given to your account ahead of time; Apple has still to confirm the purchase.")
        case .neverWorked:
            PlayerSentence(
                zh: "我们的系统未能处理这笔购买,凭证已安全保存,需要人工处理。",
                en: "Our system could not process this purchase; it is stored, and our staff has to look at it.")
        }
    }
}

import Ledger
import Purchases

extension ClientReport.Kind {
    /// The sentence about a report for the player: it was received, and it does not change the purchase.
    var sentence: PlayerSentence {
        switch self {
        case .failed:
            PlayerSentence(
                zh: "应用报告这次购买失败;如果 Apple 仍然扣款,凭证到达后会照常发放。",
                en:
                    "The app reported that this purchase failed; if Apple took money all the same, it is still credited once its proof arrives."
            )
        case .cancelled:
            PlayerSentence(
                zh: "应用报告您取消了这次购买;如果 Apple 仍然扣款,凭证到达后会照常发放。",
                en:
                    "The app reported that you cancelled this purchase; if Apple took money all the same, it is still credited once its proof arrives."
            )
        case .deferred:
            PlayerSentence(
                zh: "这次购买正在等待批准,批准后会照常发放。",
                en: "This purchase waits for somebody's approval and is credited once it is given.")
        case .error:
            PlayerSentence(
                zh: "应用在充值时遇到错误,我们已收到报告,这不影响已付款的购买。",
                en:
                    "The app met an error during this purchase; we have its report, and what was paid is not affected by it."
            )
        case .paidWithoutProof:
            PlayerSentence(
                zh: "应用报告您已付款但没有拿到凭证,我们的工作人员会查看。",
                en: "The app reported that you paid and that it got no proof of it; our staff looks into it.")
        case .refundRequested:
            PlayerSentence(
                zh: "您通过应用申请了退款,是否退款由 Apple 决定。",
                en: "You asked for a refund in the app; whether it is given is Apple's decision.")
        }
    }
}

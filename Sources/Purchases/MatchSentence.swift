extension PlayerSentence {
    package static let ownershipBegan = PlayerSentence(
        zh: "从这笔购买起,该商品属于这个账号。", en: "From this purchase on, what was bought belongs to this account.")
    package static let ownershipMoved = PlayerSentence(
        zh: "从这笔购买起,该商品转到了另一个账号名下。",
        en: "From this purchase on, what was bought belongs to another account than before.")
    package static let possibleDoubleCharge = PlayerSentence(
        zh: "您可能为同一件商品付了两次款;两笔都已发放,我们的工作人员会查看。",
        en: "You may have been charged twice for one thing; both purchases were credited, and our staff looks into it.")
}

extension MatchReason {
    /// The sentence that the purchase's owner may read. It names nobody; a reason without a sentence does not compile.
    package var sentence: PlayerSentence {
        switch self {
        case .tokenOfOrder, .orderNamed, .orderOpen:
            PlayerSentence(zh: "这笔购买对应您之前的订单。", en: "This purchase belongs to an order that you placed before.")
        case .limitSandboxUser, .limitSandboxApp, .limitMakeUpCustomer, .limitMakeUpUser:
            PlayerSentence(
                zh: "这类购买自动发放的次数已达上限,需要人工核对。",
                en: "Purchases of this kind are credited by themselves only so often; our staff looks at this one.")
        case .keyInUse:
            PlayerSentence(
                zh: "Apple 给出的编号与另一笔已发放的购买相同,需要人工核对。",
                en: "Apple lists it like another purchase that was credited; our staff looks at this one.")
        case .limitItemDay, .limitItemMonth, .limitItemEver:
            PlayerSentence(
                zh: "这件商品的购买数量超过了上限;已付款,因此照常发放。",
                en: "More of it was bought than one account may buy; it was paid for, so it was credited all the same.")
        case .recordNames:
            PlayerSentence(
                zh: "应用提交的充值记录写明这笔购买属于您的账号。",
                en: "The record that the app sent names your account as the one that paid.")
        case .tokenOfAnother:
            PlayerSentence(
                zh: "这笔购买的标识之前也用于其他账号,因此按您的订单判断。",
                en: "The mark on this purchase was used elsewhere before, so your order decided.")
        case .tokenRegistered, .tokenGrantedBefore:
            PlayerSentence(
                zh: "这笔购买带有您账号的标识。", en: "This purchase carries the mark of your account.")
        case .chainKnown:
            PlayerSentence(
                zh: "这笔购买延续了您账号之前的购买。", en: "This purchase continues one that your account made before.")
        case .orderOfAnother, .installation:
            PlayerSentence(
                zh: "这笔购买前不久,您的账号在这台设备上下过订单。",
                en: "Your account placed an order for it on that device shortly before the purchase.")
        case .orderLater, .orderReserved:
            PlayerSentence(
                zh: "这笔购买对应之后为它补建的订单,商品按购买当天的内容发放。",
                en:
                    "This purchase belongs to an order that was made for it afterwards, with the goods of the day it was bought."
            )
        case .customerKnown:
            PlayerSentence(
                zh: "这个 Apple 账号之前的购买都属于您的账号。",
                en: "What this Apple account bought before was your account's.")
        case .supportDecided:
            PlayerSentence(
                zh: "我们的工作人员核对后,将这笔购买记入了这个账号。",
                en: "Our staff looked into this purchase and found that it is this account's.")
        case .productCorrected:
            PlayerSentence(
                zh: "Apple 售出的商品与订单不同,按实际购买的商品发放。",
                en: "Apple sold another product than the order was for; what was really bought was given.")
        case .orderBoundBefore:
            PlayerSentence(
                zh: "该订单之前已有一笔购买,这笔购买另行发放。",
                en: "The order had its purchase already, so this one was given by itself.")
        case .secondCharge: .possibleDoubleCharge
        case .beforeCutover:
            PlayerSentence(
                zh: "这笔购买发生在系统切换之前,权益归您的账号,商品由原有系统发放。",
                en:
                    "This purchase was made before a change of our systems: it is your account's, and its goods were the former system's to give."
            )
        case .endedByUpgrade:
            PlayerSentence(
                zh: "这笔购买已被升级后的购买取代。", en: "What you upgraded to has taken the place of this purchase.")
        case .refundProrated:
            PlayerSentence(
                zh: "Apple 已退还这笔购买的部分款项。", en: "Apple has given back a part of what this purchase cost.")
        case .revocationUnknown:
            PlayerSentence(
                zh: "Apple 收回了这笔购买,原因需要人工核对。",
                en: "Apple has taken this purchase back; our staff has to find out why.")
        case .offerLapsed:
            PlayerSentence(
                zh: "付款时订单的优惠已过期,商品按购买当天的内容发放。",
                en: "The offer of the order was over when it was paid, so the goods are those of the day it was bought."
            )
        case .ordersDiffer:
            PlayerSentence(
                zh: "您有多个内容不同的订单,无法确定这笔购买对应哪一个。",
                en: "You had several orders for different things, and none of them could be told to be this purchase's."
            )
        case .latestAlone:
            PlayerSentence(
                zh: "您有多个订单,这笔购买对应最近的一个。", en: "Of your several orders, this purchase belongs to the latest.")
        case .offerCode:
            PlayerSentence(
                zh: "这笔购买是用兑换码完成的,不对应任何订单。",
                en: "This purchase was made with an offer code, outside of any order.")
        case .winBackOffer:
            PlayerSentence(
                zh: "这笔购买使用了 App Store 的回归优惠,不对应任何订单。",
                en: "This purchase was made with a win-back offer of the App Store, outside of any order.")
        case .sharingUnseen:
            PlayerSentence(
                zh: "这种凭证不显示购买是否由他人共享,因此按您自己的购买处理。",
                en:
                    "A proof of this kind does not show whether somebody shares the purchase with you, so it counts as yours."
            )
        case .appleUnasked:
            PlayerSentence(
                zh: "这份凭证是较早签发的,发放时没有再向 Apple 查询。",
                en: "This proof was signed a while before it was sent, and Apple was not asked again.")
        case .quantityDiffers:
            PlayerSentence(
                zh: "数量与应用所说的不同,按 Apple 的数量发放。",
                en: "The app spoke of another quantity; what Apple sold was given.")
        case .environmentDiffers:
            PlayerSentence(
                zh: "购买所在的 App Store 环境与订单预期不同,以 Apple 的记录为准。",
                en: "It was bought in another App Store environment than the order expected; Apple's word counts.")
        case .tokenOfSeveral:
            PlayerSentence(
                zh: "这笔购买的标识曾用于多个账号,因此没有采用。",
                en: "The mark on this purchase was used for several accounts, so it was not gone by.")
        case .tokenWritten:
            PlayerSentence(
                zh: "这笔购买的标识由我们后来写入,归属按之前的记录判断。",
                en: "The mark on this purchase is one that we set afterwards, so what was known before decided.")
        case .tokenUnseen:
            PlayerSentence(
                zh: "这种凭证不显示账号标识,归属按其他依据判断。",
                en: "A proof of this kind shows no mark of an account, so other signs decided.")
        case .chainMoved: .ownershipMoved
        case .transferred:
            PlayerSentence(
                zh: "按照这个应用的规则,之前购买的商品已转到提交它的账号名下。",
                en: "By the rules of this app, what was bought before has moved to the account that sent it.")
        case .transferLimit:
            PlayerSentence(
                zh: "这件商品转移账号的次数已达上限,因此没有转移。",
                en: "What was bought has moved between accounts as often as it may, so it stays where it is.")
        case .productDiffers:
            PlayerSentence(
                zh: "应用所说的商品与 Apple 售出的不同,以 Apple 的记录为准。",
                en: "The app spoke of another product than Apple sold; Apple's word counts.")
        case .itemDiffers:
            PlayerSentence(
                zh: "应用所说的物品与发放的不同,按订单或商品目录发放。",
                en: "The app spoke of another item than was given; the order or the catalogue decided.")
        case .priceDiffers:
            PlayerSentence(
                zh: "应用显示的价格与 Apple 的价格不同,以 Apple 的记录为准。",
                en: "The app showed another price than Apple's; Apple's word counts.")
        case .orderAside:
            PlayerSentence(
                zh: "应用提交的订单号不属于这笔购买,因此没有采用。",
                en: "The order that the app named is not this purchase's, so it was not gone by.")
        case .fieldsDisregarded:
            PlayerSentence(
                zh: "应用提交的部分内容无法识别,已保存但没有采用。",
                en: "Some of what the app sent makes no sense; it is stored, and was not gone by.")
        }
    }
}

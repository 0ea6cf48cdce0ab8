package import Ledger
package import Purchases

extension SupportDecisionAnswer {
    /// The answer as text for the person who ran the command.
    package func text(_ supportDecision: Statements.SupportDecision) -> String {
        let (id, app) = (supportDecision.transactionID, supportDecision.appID)
        let why = reason.map { " (\($0.rawValue): \($0.remedy))" } ?? ""
        return switch outcome {
        case .decided where supportDecision.isDryRun: "nothing stands against it: it would be written down, and given"
        case .decided:
            "it is written down, and a worker gives it; makegood explain \(id) tells when it has, or what it waits for still"
        case .granted:
            "it is granted already (makegood explain \(id)); whose a subscription or non-consumable is from now on says "
                + "makegood support own"
        case .collision: "a grant of another app in the same environment has this id: it can be given to nobody"
        case .imported: "the former system gave it (makegood explain \(id))"
        case .refunded: "Apple has given the money back: there is nothing to give"
        case .shared:
            "somebody else bought and shared it: a user who posts it may use it, and no user is given goods for it"
        case .waits: "nobody's word is what it waits for\(why)"
        case .open: "it is not verified yet\(why): makegood explain \(id) tells when it is"
        case .ended: "everything that showed it has ended\(why)"
        case .unknown: "nothing of this id is held in \(app): nobody has posted it, or it is not verified yet"
        case .gone: "its proof is not kept any more, so nothing can be judged: the app has to post it again"
        case .unasked:
            "only its id was posted, and \(app) has no serverApi credentials to ask Apple with: the app has to post the proof"
        case .itemless: "its product is sold as several items: name one of them with --item"
        case .stranger:
            "no such user is known in \(app), or the user was erased: the user has to log in and post something first"
        }
    }
}

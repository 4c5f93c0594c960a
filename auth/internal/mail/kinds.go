package mail

import "strings"

// Kind is the kind of a mail. Its text is stored in the database, and replaces $messageType in AUTH_SMTP_HEADERS.
type Kind string

// The kinds of mails. docs/mail.md#which-mail says when each is sent.
const (
	Invite           Kind = "invite"
	Confirmation     Kind = "confirmation"
	Recovery         Kind = "recovery"
	MagicLink        Kind = "magic_link"
	EmailChange      Kind = "email_change"
	Reauthentication Kind = "reauthenticate"
	PasswordChanged  Kind = "password_changed_notification"
	EmailChanged     Kind = "email_changed_notification"
	PhoneChanged     Kind = "phone_changed_notification"
	IdentityLinked   Kind = "identity_linked_notification"
	IdentityUnlinked Kind = "identity_unlinked_notification"
	FactorEnrolled   Kind = "mfa_factor_enrolled_notification"
	FactorUnenrolled Kind = "mfa_factor_unenrolled_notification"
	PasskeyCreated   Kind = "passkey_created_notification"
	PasskeyDeleted   Kind = "passkey_deleted_notification"
)

// Test is the kind of a mail that tests whether mails can be sent. No user action sends it, and it has no settings.
const Test Kind = "test"

// Kinds are all kinds of mails except Test, in the order of docs/mail.md#templates.
var Kinds = []Kind{
	Invite, Confirmation, Recovery, MagicLink, EmailChange, Reauthentication, PasswordChanged, EmailChanged,
	PhoneChanged, IdentityLinked, IdentityUnlinked, FactorEnrolled, FactorUnenrolled,
	PasskeyCreated, PasskeyDeleted,
}

// Setting returns the part of settings' names that names the kind, as in AUTH_MAILER_SUBJECTS_<Setting>.
func (k Kind) Setting() string {
	if k == Reauthentication {
		return "REAUTHENTICATION"
	}
	return strings.ToUpper(string(k))
}

// hasLink reports whether mails of this kind have a link that the recipient is to follow.
func (k Kind) hasLink() bool {
	return k == Invite || k == Confirmation || k == Recovery || k == MagicLink || k == EmailChange
}

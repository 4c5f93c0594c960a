package config

import (
	"time"

	"gatehouse/auth/internal/mail"
)

// mailerConfig is what mails say and when they are sent.
type mailerConfig struct {
	// Addresses count as confirmed at once.
	Autoconfirm bool `env:"AUTH_MAILER_AUTOCONFIRM" envDefault:"false"`
	// An e-mail change is confirmed from the old and the new address.
	SecureChange bool `env:"AUTH_MAILER_SECURE_EMAIL_CHANGE_ENABLED" envDefault:"true"`
	// Life of the links and codes in mails.
	OTPLife time.Duration `env:"AUTH_MAILER_OTP_EXP" envDefault:"3600" min:"1s"`
	// Digits of a code, 6 to 10; anything else counts as 6.
	OTPLength int `env:"AUTH_MAILER_OTP_LENGTH" envDefault:"6"`
	// Values of X-Forwarded-Host that links may be made of instead of API_EXTERNAL_URL.
	Hosts []string `env:"AUTH_MAILER_EXTERNAL_HOSTS"`
	// Path, or whole URL, of the link in an invitation; unset: /verify below API_EXTERNAL_URL, its path kept.
	PathInvite string `env:"AUTH_MAILER_URLPATHS_INVITE"`
	// The same in a confirmation.
	PathConfirmation string `env:"AUTH_MAILER_URLPATHS_CONFIRMATION"`
	// The same in recovery mails and sign-in links.
	PathRecovery string `env:"AUTH_MAILER_URLPATHS_RECOVERY"`
	// The same in mails about a change of address.
	PathEmailChange string `env:"AUTH_MAILER_URLPATHS_EMAIL_CHANGE"`
	// Subject of this kind of mail, a template; unset: the built-in one.
	Subjects kindTexts `envPrefix:"AUTH_MAILER_SUBJECTS_"`
	// URL of its body, a template; unset, or not to be had: the built-in one.
	Templates kindTexts `envPrefix:"AUTH_MAILER_TEMPLATES_"`
	// A mail notifies the user of this change.
	Notify notifyConfig `envPrefix:"AUTH_MAILER_NOTIFICATIONS_"`
	// Most bytes of a template's body.
	TemplateSize int64 `env:"AUTH_MAILER_TEMPLATE_MAX_SIZE" envDefault:"1000000" min:"1"`
	// How long a template is fresh.
	TemplateAge time.Duration `env:"AUTH_MAILER_TEMPLATE_MAX_AGE" envDefault:"10m" min:"1s"`
	// Pause after a template could not be loaded.
	TemplateRetry time.Duration `env:"AUTH_MAILER_TEMPLATE_RETRY_INTERVAL" envDefault:"10s" min:"1s"`
	// Templates are reloaded before a mail needs them; false: the first mail after MAX_AGE loads its own.
	TemplateReload bool `env:"AUTH_MAILER_TEMPLATE_RELOADING_ENABLED" envDefault:"false"`
	// Not those that no mail needed for so long.
	TemplateIdle time.Duration `env:"AUTH_MAILER_TEMPLATE_RELOADING_MAX_IDLE" envDefault:"20m" min:"1s"`
}

// kindTexts is one text for each kind of mail.
type kindTexts struct {
	Invite           string `env:"INVITE"`
	Confirmation     string `env:"CONFIRMATION"`
	Recovery         string `env:"RECOVERY"`
	MagicLink        string `env:"MAGIC_LINK"`
	EmailChange      string `env:"EMAIL_CHANGE"`
	Reauthentication string `env:"REAUTHENTICATION"`
	PasswordChanged  string `env:"PASSWORD_CHANGED_NOTIFICATION"`
	EmailChanged     string `env:"EMAIL_CHANGED_NOTIFICATION"`
	PhoneChanged     string `env:"PHONE_CHANGED_NOTIFICATION"`
	IdentityLinked   string `env:"IDENTITY_LINKED_NOTIFICATION"`
	IdentityUnlinked string `env:"IDENTITY_UNLINKED_NOTIFICATION"`
	FactorEnrolled   string `env:"MFA_FACTOR_ENROLLED_NOTIFICATION"`
	FactorUnenrolled string `env:"MFA_FACTOR_UNENROLLED_NOTIFICATION"`
}

func (k kindTexts) byKind() map[mail.Kind]string {
	all := map[mail.Kind]string{
		mail.Invite: k.Invite, mail.Confirmation: k.Confirmation, mail.Recovery: k.Recovery, mail.MagicLink: k.MagicLink,
		mail.EmailChange: k.EmailChange, mail.Reauthentication: k.Reauthentication,
		mail.PasswordChanged: k.PasswordChanged, mail.EmailChanged: k.EmailChanged, mail.PhoneChanged: k.PhoneChanged,
		mail.IdentityLinked: k.IdentityLinked, mail.IdentityUnlinked: k.IdentityUnlinked,
		mail.FactorEnrolled: k.FactorEnrolled, mail.FactorUnenrolled: k.FactorUnenrolled,
	}
	for kind, text := range all {
		if text == "" {
			delete(all, kind)
		}
	}
	return all
}

// notifyConfig is the changes that a user is notified of.
type notifyConfig struct {
	PasswordChanged  bool `env:"PASSWORD_CHANGED_ENABLED" envDefault:"false"`
	EmailChanged     bool `env:"EMAIL_CHANGED_ENABLED" envDefault:"false"`
	PhoneChanged     bool `env:"PHONE_CHANGED_ENABLED" envDefault:"false"`
	IdentityLinked   bool `env:"IDENTITY_LINKED_ENABLED" envDefault:"false"`
	IdentityUnlinked bool `env:"IDENTITY_UNLINKED_ENABLED" envDefault:"false"`
	FactorEnrolled   bool `env:"MFA_FACTOR_ENROLLED_ENABLED" envDefault:"false"`
	FactorUnenrolled bool `env:"MFA_FACTOR_UNENROLLED_ENABLED" envDefault:"false"`
}

// smtpConfig is the mail server.
type smtpConfig struct {
	// Required unless nothing is to be mailed (see above). Address that mails come from.
	AdminEmail string `env:"AUTH_SMTP_ADMIN_EMAIL"`
	// Required likewise. Name or address of the server.
	Host string `env:"AUTH_SMTP_HOST"`
	// Its port.
	Port int `env:"AUTH_SMTP_PORT" envDefault:"587" min:"1" max:"65535"`
	// required: STARTTLS or nothing; opportunistic: STARTTLS where offered; implicit: TLS from the first byte; none: in clear; auto: implicit on port 465, else opportunistic.
	TLS string `env:"AUTH_SMTP_TLS" envDefault:"auto" oneof:"auto opportunistic required implicit none" fold:"true"`
	// User name; unset: no sign-in.
	User string `env:"AUTH_SMTP_USER"`
	// Password.
	Pass string `env:"AUTH_SMTP_PASS" secret:"true"`
	// Name shown next to the address; unset: the address.
	SenderName string `env:"AUTH_SMTP_SENDER_NAME"`
	// Pause between two mails of a kind to one address; unset: 900s for sign-up confirmations, 60s for the others.
	MaxFrequency time.Duration `env:"AUTH_SMTP_MAX_FREQUENCY" min:"0s"`
	// Further headers: a JSON object of names and lists of values; `$messageType` stands for the kind.
	Headers string `env:"AUTH_SMTP_HEADERS"`
}

// Package factor holds the flows of second factors: the user enrolls, challenges, verifies and removes factors; an
// administrator changes and removes them.
package factor

import (
	"slices"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// Factors has the entry points of the flows of second factors. Its methods may be called from any goroutine.
type Factors struct{ core *flow.Core }

// New returns the entry points of the flows in this package. They use the database, the keys and the settings in k.
func New(k *flow.Core) *Factors { return &Factors{k} }

// kinds has the name of each kind of factor, and the codes of the refusals while the kind is switched off.
var kinds = map[store.FactorKind]struct{ name, enrollOff, verifyOff string }{
	store.FactorTOTP:          {"TOTP", refusal.CodeTOTPEnrollDisabled, refusal.CodeTOTPVerifyDisabled},
	store.FactorPhone:         {"Phone", refusal.CodePhoneEnrollDisabled, refusal.CodePhoneVerifyDisabled},
	store.FactorWebAuthn:      {"WebAuthn", refusal.CodeWebAuthnEnrollDisabled, refusal.CodeWebAuthnVerifyDisabled},
	store.FactorRecoveryCodes: {"recovery codes", refusal.CodeRecoveryEnrollDisabled, refusal.CodeRecoveryVerifyDisabled},
}

// checkEnroll returns a refusal if the enrolment of factors of this kind is switched off.
func checkEnroll(s *flow.Settings, k store.FactorKind) error {
	if s.Factors.Switches(k).Enroll {
		return nil
	}
	return refusal.Unprocessable(kinds[k].enrollOff, "MFA enroll is disabled for "+kinds[k].name)
}

// checkVerify returns a refusal if the verification of factors of this kind is switched off.
func checkVerify(s *flow.Settings, k store.FactorKind) error {
	if s.Factors.Switches(k).Verify {
		return nil
	}
	return refusal.Unprocessable(kinds[k].verifyOff, "MFA verification is disabled for "+kinds[k].name)
}

// isUsable reports whether a factor can raise a session to aal2 now. Recovery codes do not count.
func isUsable(s *flow.Settings, o store.Factor) bool {
	return o.Kind != store.FactorRecoveryCodes && o.Verified() && s.Factors.Switches(o.Kind).Verify
}

// leavesCodesAlone reports whether the deletion of a factor, removed, would leave the user's recovery codes as the only
// verified factor, or as the only usable one.
func leavesCodesAlone(s *flow.Settings, u store.User, removed store.Factor) bool {
	if _, err := codesOf(u); err != nil || !removed.Verified() || removed.Kind == store.FactorRecoveryCodes {
		return false
	}
	others := slices.DeleteFunc(slices.Clone(u.Factors), func(o store.Factor) bool {
		return o.ID == removed.ID || o.Kind == store.FactorRecoveryCodes || !o.Verified()
	})
	usable := slices.ContainsFunc(others, func(o store.Factor) bool { return isUsable(s, o) })
	return len(others) == 0 || isUsable(s, removed) && !usable
}

package factor

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/totp"
)

// Enrolment is a request to add a second factor.
type Enrolment struct {
	Kind         string `json:"factor_type"` // totp or phone
	FriendlyName string `json:"friendly_name"`
	Issuer       string `json:"issuer"` // of a TOTP factor; "" stands for the host of SITE_URL
	Phone        string `json:"phone"`
}

// Enrolled is the answer to an Enrolment. It is the only answer that shows the key of a TOTP factor.
type Enrolled struct {
	Factor store.Factor
	// Phone is the phone number as the request spells it.
	Phone               string
	Secret, URI, QRCode string
}

// maxFactorText is the maximum length in characters of a factor's name and issuer: the name is in an index, and both
// are in a QR code.
const maxFactorText = 255

// EnrollFactor adds an unverified second factor to the user.
func (a *Factors) EnrollFactor(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	p Enrolment) (Enrolled, error) {
	f := a.core.Begin(req)
	out := Enrolled{Factor: store.Factor{ID: uuid.New(), FriendlyName: flow.StorableText(p.FriendlyName), CreatedAt: f.Now,
		UpdatedAt: f.Now}}
	if err := checkEnrolment(f.Settings, p, &out); err != nil {
		return Enrolled{}, err
	}
	if principal.Session.ID == uuid.Nil {
		return Enrolled{}, &refusal.Refusal{Kind: refusal.KindFailed, Code: refusal.CodeUnexpectedFailure,
			Msg: "A valid session and a registered user are required to enroll a factor"}
	}
	var sealed []byte
	if out.Factor.Kind == store.FactorTOTP {
		key := totp.NewKey()
		sealed = sealKey(f, out.Factor.ID, key)
		out.Secret, out.URI = totp.Text(key), totp.URI(issuer(f.Settings, p.Issuer), accountName(principal.User), key)
		var err error
		if out.QRCode, err = totp.SVG(out.URI); err != nil {
			return Enrolled{}, refusal.NotValid("issuer is too long for a QR code")
		}
	}
	err := flow.OnPrincipal(ctx, f, principal, func(tx *flow.Tx, u store.User, v store.Session) error {
		stale, err := makeRoom(f.Settings, out.Factor, u, v, f.Now)
		if err != nil {
			return err
		}
		b := tx.Batch()
		if len(stale) > 0 {
			b.DeleteFactors(u.ID, stale...)
		}
		b.InsertFactor(u.ID, out.Factor, sealed)
		b.Audit(f.Audit(store.ActionFactorInProgress, u.ID, v.ID, "factor_id", out.Factor.ID.String(), "factor_type",
			string(out.Factor.Kind)))
		return b.Send(ctx)
	})
	return out, refusal.Failure("enroll a factor", err)
}

// checkEnrolment makes the checks that need only the request, and sets the fields of the answer out that follow from
// the request.
func checkEnrolment(s *flow.Settings, p Enrolment, out *Enrolled) (err error) {
	factor := &out.Factor
	switch kind := store.FactorKind(p.Kind); kind {
	case store.FactorTOTP, store.FactorPhone, store.FactorWebAuthn:
		factor.Kind = kind
	default:
		return errFactorType
	}
	if err := checkEnroll(s, factor.Kind); err != nil {
		return err
	}
	if factor.Kind == store.FactorPhone {
		if p.Phone == "" {
			return refusal.NotValid("Phone number required to enroll Phone factor")
		}
		if factor.Phone, err = flow.ParsePhone(p.Phone); err != nil {
			return err
		}
		out.Phone = p.Phone
	}
	return checkFactorText(p.FriendlyName, p.Issuer)
}

var errFactorType = refusal.NotValid("factor_type needs to be totp, phone, or webauthn")

func checkFactorText(name, issuer string) error {
	if utf8.RuneCountInString(name) > maxFactorText {
		return refusal.NotValid(fmt.Sprintf("friendly_name cannot be longer than %d characters", maxFactorText))
	}
	if utf8.RuneCountInString(issuer) > maxFactorText {
		return refusal.NotValid(fmt.Sprintf("issuer cannot be longer than %d characters", maxFactorText))
	}
	return nil
}

// makeRoom checks whether a user may have one more factor. It returns the unverified factors to delete first: factors
// with the same phone number, and factors that were abandoned.
func makeRoom(s *flow.Settings, factor store.Factor, u store.User, v store.Session,
	now time.Time) (stale []uuid.UUID, err error) {
	verified := 0
	var others []store.Factor
	for _, o := range u.Factors {
		sameNumber := factor.Phone != "" && o.Phone == factor.Phone
		switch {
		case o.Verified() && sameNumber:
			return nil, refusal.Unprocessable(refusal.CodeVerifiedFactorExists,
				"A verified phone factor already exists, unenroll the existing factor to continue")
		case o.Verified():
			verified++
		case sameNumber, o.LastChallengedAt.IsZero() && now.After(o.CreatedAt.Add(s.Factors.UnverifiedLife)):
			stale = append(stale, o.ID)
			continue
		}
		others = append(others, o)
	}
	switch {
	case slices.ContainsFunc(others, func(o store.Factor) bool { return o.FriendlyName == factor.FriendlyName }):
		return nil, errFactorName(factor.FriendlyName)
	case len(others) >= s.Factors.MaxEnrolled || verified >= s.Factors.MaxVerified:
		return nil, errTooManyFactors
	case verified > 0 && v.AAL < 2:
		return nil, errEnrollLow
	}
	return stale, nil
}

var (
	errTooManyFactors = refusal.Unprocessable(refusal.CodeTooManyFactors,
		"Maximum number of verified factors reached, unenroll to continue")
	errEnrollLow = refusal.Denied(refusal.CodeInsufficientAAL, "AAL2 required to enroll a new factor")
)

func errFactorName(name string) error {
	return refusal.Unprocessable(refusal.CodeFactorNameConflict,
		fmt.Sprintf("A factor with the friendly name %q for this user already exists", name))
}

// issuer returns the name of the site that an authenticator app shows. asked is the name in the request.
func issuer(s *flow.Settings, asked string) string {
	if issuer := cmp.Or(asked, s.SiteName); issuer != "" {
		return issuer
	}
	if u, err := url.Parse(s.SiteURL); err == nil && u.Host != "" {
		return u.Host
	}
	return s.SiteURL
}

// accountName returns the name of the user that an authenticator app shows.
func accountName(u store.User) string { return cmp.Or(u.Email, u.Phone, u.ID.String()) }

// sealKey encrypts a TOTP key for the database and binds it to the factor with this ID.
func sealKey(f *flow.Flow, id uuid.UUID, key []byte) []byte {
	return f.Core.Root.Seal(secret.Factors, key, id[:])
}

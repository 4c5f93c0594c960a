package webauthn

// User is the user entity in options. Its ID is the user handle, by which authenticators tell users of a site apart.
type User struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	DisplayName string `json:"displayName"`
}

// RelyingParty is the site that credentials are made for.
type RelyingParty struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Descriptor names a credential in options.
type Descriptor struct {
	Type       string   `json:"type"`
	ID         string   `json:"id"`
	Transports []string `json:"transports,omitempty"`
}

// Selection holds the requirements for the authenticator.
type Selection struct {
	ResidentKey        string `json:"residentKey"`
	RequireResidentKey bool   `json:"requireResidentKey"`
	UserVerification   string `json:"userVerification"`
}

// Parameter offers an algorithm to the authenticator.
type Parameter struct {
	Type string `json:"type"`
	Alg  int    `json:"alg"`
}

// CreationOptions are the options of a registration: the standard's PublicKeyCredentialCreationOptionsJSON.
type CreationOptions struct {
	RP                 RelyingParty `json:"rp"`
	User               User         `json:"user"`
	Challenge          string       `json:"challenge"`
	Parameters         []Parameter  `json:"pubKeyCredParams"`
	Timeout            int64        `json:"timeout"`
	ExcludeCredentials []Descriptor `json:"excludeCredentials,omitempty"`
	Selection          Selection    `json:"authenticatorSelection"`
	// Attestation is always sent, since client libraries request attestation if it is missing.
	Attestation string `json:"attestation"`
}

// RequestOptions are the options of a sign-in: the standard's PublicKeyCredentialRequestOptionsJSON.
type RequestOptions struct {
	Challenge        string       `json:"challenge"`
	Timeout          int64        `json:"timeout"`
	RPID             string       `json:"rpId"`
	AllowCredentials []Descriptor `json:"allowCredentials,omitempty"`
	UserVerification string       `json:"userVerification"`
}

// Create returns the options of a registration, without challenge and timeout.
func Create(rp RelyingParty, u User, s Selection) CreationOptions {
	return CreationOptions{RP: rp, User: u, Selection: s, Attestation: "none",
		Parameters: []Parameter{{"public-key", ES256}, {"public-key", EdDSA}, {"public-key", RS256}}}
}

// Describe returns the Descriptor of a credential.
func Describe(c Credential) Descriptor {
	return Descriptor{Type: "public-key", ID: Encode(c.ID), Transports: c.Transports}
}

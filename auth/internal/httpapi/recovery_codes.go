package httpapi

import (
	"strconv"

	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/jsontext"
)

// getRecoveryCodes answers how many recovery codes the user has left.
func (s *Server) getRecoveryCodes(c *call, principal flow.Principal) error {
	codes, err := s.factors.RecoveryCodes(c.ctx(), principal)
	if err != nil {
		return err
	}
	b := appendID(append(make([]byte, 0, 128), `{"id":`...), codes.Factor.ID)
	b = jsontext.AppendString(append(b, `,"type":`...), string(codes.Factor.Kind))
	b = strconv.AppendInt(append(b, `,"total":`...), int64(codes.Total), 10)
	b = strconv.AppendInt(append(b, `,"remaining":`...), int64(codes.Remaining), 10)
	return c.json(200, append(b, '}'))
}

// postRecoveryCodes makes recovery codes for the user. The body may be empty.
func (s *Server) postRecoveryCodes(c *call, principal flow.Principal) error {
	if err := s.factors.CheckRecoveryCodesEnroll(); err != nil {
		return err
	}
	var in struct {
		FriendlyName string `json:"friendly_name"`
	}
	if err := c.decodeGiven(&in); err != nil {
		return err
	}
	return c.recoveryCodes(s.factors.GenerateRecoveryCodes(c.ctx(), c.requestInfo(), principal, in.FriendlyName))
}

// postRecoveryCodesRegenerate replaces the user's recovery codes.
func (s *Server) postRecoveryCodesRegenerate(c *call, principal flow.Principal) error {
	if err := s.factors.CheckRecoveryCodesEnroll(); err != nil {
		return err
	}
	return c.recoveryCodes(s.factors.RegenerateRecoveryCodes(c.ctx(), c.requestInfo(), principal))
}

// recoveryCodes answers with new recovery codes, which are shown only in this answer.
func (c *call) recoveryCodes(codes factor.RecoveryCodes, err error) error {
	if err != nil {
		return err
	}
	b := appendID(append(make([]byte, 0, 384), `{"id":`...), codes.Factor.ID)
	b = jsontext.AppendString(append(b, `,"type":`...), string(codes.Factor.Kind))
	b = jsontext.AppendString(append(b, `,"friendly_name":`...), codes.Factor.FriendlyName)
	b = strconv.AppendInt(append(b, `,"total":`...), int64(codes.Total), 10)
	b = appendList(append(b, `,"codes":`...), codes.Codes, func(b []byte, code *string) []byte {
		return jsontext.AppendString(b, *code)
	})
	return c.json(200, append(b, '}'))
}

// postRecoveryCodesVerify uses up one of the user's recovery codes.
func (s *Server) postRecoveryCodesVerify(c *call, principal flow.Principal) error {
	if err := s.limit(c, byFactorVerify); err != nil {
		return err
	}
	if err := s.factors.CheckRecoveryCodesVerify(); err != nil {
		return err
	}
	var in struct {
		Code string `json:"code"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	return c.grantView(s.factors.VerifyRecoveryCode(c.ctx(), c.requestInfo(), principal, in.Code))
}

// deleteRecoveryCodes removes the user's recovery codes.
func (s *Server) deleteRecoveryCodes(c *call, principal flow.Principal) error {
	f, err := s.factors.DeleteRecoveryCodes(c.ctx(), c.requestInfo(), principal)
	if err != nil {
		return err
	}
	return c.json(200, append(appendID(append(make([]byte, 0, 64), `{"id":`...), f.ID), '}'))
}

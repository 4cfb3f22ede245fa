package join

// Reason is why serve refuses. It reads as a sentence.
type Reason string

// The reasons. Those of tokens say no more than whoever holds the secret may know.
const (
	BadRequest       Reason = "the request can't be read"
	BadCSR           Reason = "the certificate signing request does not hold"
	NotThisTransport Reason = "the request was not made for this connection: it was captured elsewhere, or something stands between"
	UnknownToken     Reason = "there is no such join token"
	ForgedToken      Reason = "the secret of the join token is wrong"
	RevokedToken     Reason = "the join token was revoked"
	ExpiredToken     Reason = "the join token has expired"
	UsedUpToken      Reason = "the join token has no uses left"
	WrongEnvironment Reason = "the join token is for another environment"
	WrongRole        Reason = "the join token is for another role"
	WrongNode        Reason = "the join token is for another node"
	NoEnvironment    Reason = "there is no such environment"
	NoName           Reason = "neither the token nor the machine says which node this is"
	NotCalledFor     Reason = "the environment does not call for this node"
	AllTaken         Reason = "every number of this role is taken"
	NameTaken        Reason = "this node has joined already"
	HeldByAnother    Reason = "another machine has this node's name"
	LockedByAnother  Reason = "another machine is in its first boot under this node's name"
	WasRemoved       Reason = "this node was removed from the fleet"
	TooManyMachines  Reason = "too many machines are in their first boot with this token"
	NoCertificate    Reason = "this needs the certificate of a node"
	WrongCertificate Reason = "the certificate is not the one that this node has now"
	WrongMachine     Reason = "the machine is not the one that joined"
)

// The reasons that pass by themselves: the client tries again.
const (
	TooManyRefused Reason = "too many requests from this address were refused"
	TooOften       Reason = "it asks too often"
	TooBusy        Reason = "too many join at this moment"
	NoEtcd         Reason = "etcd gives no answer"
	Broken         Reason = "pulley serve has trouble of its own"
)

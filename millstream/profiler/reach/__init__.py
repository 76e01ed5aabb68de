"""How near work came to what its device reaches: flops and bytes against ceilings."""
